"""Run-time changes: atomic, hot or after a restart, persisted or not, and never paths."""

from pathlib import Path

import pytest
from delaymq.config import BrokerConfig, ConfigError, NamesrvConfig, resolve, to_settings
from delaymq.config.describe import describe
from delaymq.config.layers import file_layer, same_origin
from delaymq.config.running import FORBIDDEN_KEYS, Change, ForbiddenKeyError, RunningSettings
from delaymq_testing.step_runner import at_once

NOW_MS = 1_700_000_000_000


class Running:
    """A broker's settings, started with a file."""

    def __init__(self, path: Path | None, **flags: str) -> None:
        layers = [file_layer(path)[0]] if path is not None else []
        resolved = resolve(BrokerConfig, *layers, same_origin(flags, "flag --x"))
        self.config = resolved.config
        self.settings = RunningSettings(BrokerConfig, resolved, path)

    def change(self, **settings: str) -> Change[BrokerConfig]:
        steps = self.settings.change(lambda: self.config, settings, by="code 25 of 127.0.0.1:5", now_ms=NOW_MS)
        change = at_once(steps)
        self.config = change.config
        return change

    def origin(self, key: str) -> str:
        return self.settings.origins[key]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "broker.conf"
    file.write_text("# mine\nfileReservedTime=48\n")
    return file


def test_hot_keys_change_immediately_others_after_restart_and_the_file_has_both(path: Path) -> None:
    running = Running(path)
    change = running.change(fileReservedTime="24", regionId="b", sendMessageThreadPoolNums="4")
    assert (change.config.file_reserved_time, change.config.region_id) == (24, "DefaultRegion")
    assert change.remark == (
        "changed now: fileReservedTime; takes effect after a restart: regionId;"
        f" ignored keys without a meaning here: sendMessageThreadPoolNums; stored in {path}"
    )
    assert path.read_text() == "# mine\nfileReservedTime=24\nregionId=b\n"
    again = Running(path)
    assert (again.config.file_reserved_time, again.config.region_id) == (24, "b")


def test_values_have_their_origin_and_pending_changes(path: Path) -> None:
    running = Running(path)
    running.change(fileReservedTime="24", regionId="b")
    rows = {row["key"]: row for row in describe(running.config, running.settings.origins, running.settings.waiting)}
    assert rows["fileReservedTime"]["value"] == "24"
    origin = rows["fileReservedTime"]["origin"]
    assert origin.startswith("changed at 2023-11-1")
    assert origin.endswith(" by code 25 of 127.0.0.1:5")
    assert (rows["regionId"]["value"], rows["regionId"]["waiting"]) == ("DefaultRegion", "b")
    assert rows["listenPort"]["origin"] == "default"
    running.change(regionId="DefaultRegion")
    assert running.settings.waiting == {}


def test_hot_keys_change_until_the_restart_without_a_file_and_others_are_rejected() -> None:
    running = Running(None)
    change = running.change(fileReservedTime="24")
    assert change.remark == (
        "changed now: fileReservedTime; lost at the next restart: there is no configuration file (-c) to store it in"
    )
    assert running.origin("fileReservedTime").endswith(", until the next restart")
    with pytest.raises(ConfigError, match=r"regionId: a change needs a restart, and there is no .*; nothing was"):
        running.change(regionId="b", fileReservedTime="12")
    assert running.config.file_reserved_time == 24


def test_unwritable_file_counts_as_none(path: Path) -> None:
    running = Running(path)
    (path.parent / f".{path.name}.new").mkdir()
    assert f"lost at the next restart: cannot write {path}" in running.change(fileReservedTime="24").remark
    with pytest.raises(ConfigError, match="cannot write"):
        running.change(regionId="b")
    path.unlink()
    assert "cannot read" in running.change(fileReservedTime="12").remark


def test_value_set_by_a_flag_is_reported_as_temporary_and_not_saved(path: Path) -> None:
    running = Running(path, fileReservedTime="36", regionId="flagged")
    assert "after a restart flag --x takes precedence" in running.change(fileReservedTime="24").remark
    with pytest.raises(ConfigError, match="the flag --x takes precedence over the file"):
        running.change(regionId="b")


@pytest.mark.parametrize(
    "settings",
    [
        {"fileReservedTime": "24", "maxMessageSize": "many"},
        {"fileReservedTime": "24", "lisenPort": "1"},
        {"fileReservedTime": "24", "listenPort": "1"},
        {"fileReservedTime": "24", "aclEnable": "true"},
    ],
)
def test_change_with_one_invalid_key_changes_nothing(path: Path, settings: dict[str, str]) -> None:
    running = Running(path)
    before, text = running.config, path.read_text()
    with pytest.raises(ConfigError):
        running.change(**settings)
    assert (running.config, path.read_text()) == (before, text)
    assert running.origin("fileReservedTime") == f"{path}:2"


@pytest.mark.parametrize("key", sorted(FORBIDDEN_KEYS))
def test_paths_addresses_names_ports_and_secrets_are_never_changed_remotely(path: Path, key: str) -> None:
    with pytest.raises(ForbiddenKeyError, match=f"{key}: cannot be changed over the network"):
        Running(path).change(**{key: "9"})
    settings = RunningSettings(NamesrvConfig)
    with pytest.raises(ForbiddenKeyError):
        at_once(settings.change(NamesrvConfig, {key: "9"}, by="x", now_ms=NOW_MS))


def test_every_path_port_and_secret_key_is_forbidden() -> None:
    words = ("port", "path", "dir", "host", "token", "namesrvaddr", "brokerip", "brokername", "clustername")
    for config in (BrokerConfig(), NamesrvConfig()):
        keys = {key: key.lower().replace("support", "") for key in [*to_settings(config), "httpToken"]}
        named = {key for key, text in keys.items() if any(word in text for word in words)}
        assert named <= FORBIDDEN_KEYS


def test_setting_the_current_value_changes_nothing_without_revealing_the_token(path: Path) -> None:
    running = Running(path, httpToken="secret")
    running.change(listenPort="10911", fileReservedTime="24")
    with pytest.raises(ForbiddenKeyError):
        running.change(httpToken="secret")


def test_black_list_forbids_further_keys(path: Path) -> None:
    running = Running(path, configBlackList="regionId; fileReservedTime")
    with pytest.raises(ForbiddenKeyError, match="fileReservedTime"):
        running.change(fileReservedTime="24")


def test_secrets_are_shown_only_as_set() -> None:
    [row] = [row for row in describe(BrokerConfig(http_token="t0k3n"), {}) if row["key"] == "httpToken"]
    assert (row["value"], row["isSet"]) == (None, True)
    assert "t0k3n" not in str(describe(BrokerConfig(http_token="t0k3n"), {}))


@pytest.mark.parametrize(
    "value", ["\x1b[31m", "a\nlistenPort=9", "a\x00", "a\x85b", "a\u2028b", "\ud800", "x" * 20_000]
)
def test_remote_change_cannot_leave_a_value_that_prevents_a_start(tmp_path: Path, value: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=before\n")
    running = Running(path)
    with pytest.raises(ConfigError, match="regionId: the value"):
        running.change(regionId=value)
    assert path.read_text() == "brokerName=before\n"
    assert running.change(regionId="eu-1").remark == f"takes effect after a restart: regionId; stored in {path}"


def test_file_does_not_exceed_the_start_limit(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    text = "brokerName=before\n" + "# a comment\n" * (((1 << 20) - 100) // 12)
    path.write_text(text)
    running = Running(path)
    with pytest.raises(ConfigError, match="exceeds 1048576 bytes"):
        running.change(regionId="x" * 1_000)
    assert path.read_text() == text
