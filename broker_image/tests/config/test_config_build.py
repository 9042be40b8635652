"""Configuration: layers, ranges, unknown keys, and rejected settings."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from delaymq.config import (
    BrokerConfig,
    ConfigError,
    NamesrvConfig,
    build,
    from_environment,
    is_hot,
    keys_of,
    parse_properties_text,
    read_properties_file,
    to_properties_text,
)


def test_rocketmq_keys_become_fields_and_later_layers_win() -> None:
    config, notes = build(
        BrokerConfig,
        {"brokerIP1": "10.0.0.1", "listenPort": "1"},
        {"listenPort": "2", "autoCreateTopicEnable": "FALSE"},
    )
    assert (config.broker_ip1, config.listen_port, config.auto_create_topic_enable, notes) == ("10.0.0.1", 2, False, [])


def test_unsupported_keys_are_reported_without_stopping_the_start() -> None:
    _, notes = build(BrokerConfig, {"sendMessageThreadPoolNums": "16"})
    assert notes == ["sendMessageThreadPoolNums has no meaning here and is ignored"]


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("lisenPort", "1", "did you mean listenPort?"),
        ("enableDLegerCommitLog", "true", "DLedger is not supported"),
        ("dLedgerGroup", "g", "DLedger is not supported"),
        ("listenPort", "65536", "0 to 65535"),
        ("listenPort", "x", "not an integer"),
        ("autoCreateTopicEnable", "yes", "use true or false"),
        ("flushDiskType", "SYNC", "use one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("messageDelayLevel", "1s 2x", "level 2"),
        ("messageDelayLevel", " ", "empty"),
        ("aclEnable", "on", "use true or false"),
        ("brokerRole", "SLAVE", "haMasterAddress is empty"),
        ("brokerRole", "LEADER", "use one of ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("brokerId", "1", "a master has the id 0"),
        ("storePathCommitLog", "/data", "remove the key"),
    ],
)
def test_unsatisfiable_settings_are_rejected_with_a_hint(key: str, value: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint.replace("?", r"\?")):
        build(BrokerConfig, {key: value})


def test_environment_variables_name_fields() -> None:
    assert from_environment(NamesrvConfig, {"DELAYMQ_ROUTE_GRACE_MS": "5", "PATH": "/bin"}) == {"routeGraceMs": "5"}


def test_properties_text_follows_javas_syntax() -> None:
    text = "# comment\n! comment\n\na = 1\nb:2\nc=x\\\n   y\nd=\\u0041\\tz\nempty\n"
    assert parse_properties_text(text) == {"a": "1", "b": "2", "c": "xy", "d": "A\tz", "empty": ""}


def test_text_of_a_configuration_builds_the_same_configuration() -> None:
    config = BrokerConfig(broker_name="b", message_delay_level="1s 7d", auto_create_topic_enable=False)
    assert build(BrokerConfig, parse_properties_text(to_properties_text(config)))[0] == config


def test_token_never_appears_in_the_text() -> None:
    assert "t0k3n" not in to_properties_text(BrokerConfig(http_token="t0k3n"))


def test_every_number_has_a_range_that_contains_its_default() -> None:
    kinds: tuple[Any, ...] = (BrokerConfig, NamesrvConfig)
    for kind in kinds:
        for key, item in keys_of(kind).items():
            if item.type == "int":
                assert item.metadata["low"] <= item.default <= item.metadata["high"], key


def test_changes_are_classified_as_hot_or_not() -> None:
    assert is_hot(BrokerConfig, "messageDelayLevel") is True
    assert is_hot(BrokerConfig, "listenPort") is False
    assert is_hot(BrokerConfig, "nonsense") is None


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * ((1 << 20) + 1)])
def test_invalid_file_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is it a configuration file"):
        read_properties_file(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_properties_file(tmp_path / "missing")


def test_configurations_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BrokerConfig().listen_port = 1


def test_capitalised_rocketmq_keys_are_accepted_in_their_spelling() -> None:
    config, ignored = build(BrokerConfig, {"checkCRCOnRecover": "false", "brokerIP1": "10.0.0.1"})
    assert (config.check_crc_on_recover, config.broker_ip1, ignored) == (False, "10.0.0.1", [])
