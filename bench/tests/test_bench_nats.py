"""Comparison with NATS: pinned programs, configuration, rows, and times of deliveries."""

from pathlib import Path

import pytest
from cluster.errors import ClusterError
from harness.errors import HarnessError
from nats import programs, server
from nats.__main__ import arguments_of, nats_contender
from nats.scenarios import EACH, GROUPS, MISSING_IN_OURS, SCENARIOS
from subjects import SETTINGS, recorded_times


def test_label_is_the_version_that_the_module_pins() -> None:
    text = (programs.GO_PATH / "server" / "go.mod").read_text()
    assert f"require {programs.SERVER_MODULE} v{programs.version()}\n" in text
    assert nats_contender().label == f"NATS {programs.version()}"


@pytest.mark.parametrize(
    "text",
    [
        "require github.com/nats-io/nats-server/v2 v2.15.3\n",
        "go 1.26\n\nrequire (\n\tgithub.com/nats-io/jwt v1.0.0\n\tgithub.com/nats-io/nats-server/v2 v2.15.3\n)\n",
    ],
)
def test_server_version_is_read_from_a_module_file(text: str) -> None:
    assert programs.server_version(text) == "2.15.3"


@pytest.mark.parametrize("text", ["", "require github.com/nats-io/nats.go v1.55.0\n", "// nats-server/v2 v2.15.3\n"])
def test_module_file_without_the_server_is_an_error(text: str) -> None:
    with pytest.raises(ClusterError, match=r"does not require github.com/nats-io/nats-server/v2: restore .*go\.mod"):
        programs.server_version(text)


def test_both_brokers_sync_at_the_same_interval() -> None:
    assert SETTINGS["flushIntervalCommitLog"] == "500"
    assert 'sync_interval: "500ms"' in server.configuration(4222, "/store")


def test_server_listens_on_loopback_only() -> None:
    text = server.configuration(4222, "/store")
    assert 'listen: "127.0.0.1:4222"\n' in text
    assert text.count("listen") == 1
    assert 'store_dir: "/store"' in text


def test_row_groups_are_those_of_the_scenarios() -> None:
    assert set(GROUPS) == set().union(*(groups for _, groups in SCENARIOS.values()))
    assert arguments_of([]).options.groups == set(GROUPS)


def test_unknown_row_group_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        arguments_of(["--rows", "sync1,replicas"])
    assert stop.value.code == 2
    assert f"--rows: unknown groups: replicas: use {', '.join(GROUPS)}" in capsys.readouterr().err


def test_missing_rows_are_those_of_scenarios() -> None:
    assert set(MISSING_IN_OURS) == {EACH} <= set(SCENARIOS)


def test_times_of_deliveries_are_read_from_the_file_of_the_load_program(tmp_path: Path) -> None:
    path = tmp_path / "Delayed.times"
    path.write_text("1795911330000 1795911330136.673\n1795911330001 1795911330265\n")
    assert recorded_times(path) == [(1795911330000, 1795911330136.673), (1795911330001, 1795911330265)]
    path.write_text("")
    assert recorded_times(path) == []


@pytest.mark.parametrize("line", ["1795911330000\n", " 1795911330136.673\n", "1 2 3\n", "due 5\n"])
def test_file_of_times_in_another_form_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "Delayed.times"
    path.write_text("1 2\n" + line)
    with pytest.raises(HarnessError, match=r"line 2 of .*Delayed.times is not a due time and a store time"):
        recorded_times(path)
