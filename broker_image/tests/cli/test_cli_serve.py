"""Precedence of configuration: flags, then the environment, then the file."""

from pathlib import Path

import pytest
from delaymq.cli.servers.rocketmq_conf import rocketmq_conf
from delaymq.cli.servers.serve import disk_note, parser
from delaymq.cli.servers.settings import ServerSettings, advertised_address, misspelt_variables, settings_of
from delaymq.config import STANDALONE_DEFAULTS, BrokerConfig, ConfigError, NamesrvConfig


def broker(*words: str, command: str = "standalone", **environment: str) -> BrokerConfig:
    found = settings(command, *words, **environment).broker
    assert found is not None
    return found.config


def namesrv(command: str, *words: str, **environment: str) -> NamesrvConfig:
    found = settings(command, *words, **environment).namesrv
    assert found is not None
    return found.config


def settings(command: str, *words: str, **environment: str) -> ServerSettings:
    return settings_of(command, parser(command).parse_args(words), environment)


def test_flags_override_environment_file_and_defaults(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("listenPort=1\nhttpPort=1\nbrokerName=file\n")
    config = broker("-c", str(file), "--listen-port", "3", DELAYMQ_LISTEN_PORT="2", DELAYMQ_HTTP_PORT="2")
    assert (config.listen_port, config.http_port, config.broker_name) == (3, 2, "file")
    assert config.mapped_file_size_commit_log == 64 << 20


def test_file_may_override_standalones_file_sizes(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("mappedFileSizeCommitLog=1073741824\n")
    assert broker("-c", str(file)).mapped_file_size_commit_log == 1 << 30
    assert broker(command="broker").mapped_file_size_commit_log == 1 << 30
    assert set(STANDALONE_DEFAULTS) <= {
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "maxHashSlotNum",
        "maxIndexNum",
    }


def test_host_is_bound_and_advertised() -> None:
    config = broker("--host", "127.0.0.2")
    assert (config.listen_host, config.http_host, config.broker_ip1) == ("127.0.0.2",) * 3
    config = broker("--host", "0.0.0.0", "--broker-ip", "10.0.0.1")
    assert (config.listen_host, config.broker_ip1) == ("0.0.0.0", "10.0.0.1")
    assert broker(DELAYMQ_LISTEN_HOST="127.0.0.3").broker_ip1 == "127.0.0.3"
    assert broker("--host", "127.0.0.2", DELAYMQ_BROKER_IP1="10.0.0.9").broker_ip1 == "10.0.0.9"


def test_all_interfaces_need_an_advertised_address() -> None:
    with pytest.raises(ConfigError, match="--broker-ip"):
        broker("--host", "0.0.0.0")
    with pytest.raises(ConfigError, match="nor a resolvable name"):
        advertised_address("no such host")
    assert advertised_address("localhost") in ("127.0.0.1", "::1")


def test_separate_nameserver_has_its_own_flags(tmp_path: Path) -> None:
    words = ("--listen-port", "5", "--store-path", str(tmp_path), "--host", "127.0.0.2")
    config = namesrv("namesrv", *words, DELAYMQ_ROUTE_GRACE_MS="7")
    assert (config.listen_port, config.listen_host, config.route_grace_ms) == (5, "127.0.0.2", 7)
    assert config.kv_config_path == str(tmp_path / "kvConfig.json")


def test_standalone_nameserver_does_not_use_the_brokers_ports() -> None:
    environment = {"DELAYMQ_LISTEN_PORT": "2", "DELAYMQ_HTTP_PORT": "3", "DELAYMQ_ROUTE_GRACE_MS": "7"}
    words = ("--namesrv-port", "9", "--store-path", "/s")
    own, config = broker(*words, **environment), namesrv("standalone", *words, **environment)
    assert (own.listen_port, own.http_port) == (2, 3)
    assert (config.listen_port, config.http_port, config.route_grace_ms) == (9, 0, 7)
    assert config.kv_config_path == "/s/delaymq/kvConfig.json"


def test_required_disk_space_is_stated(tmp_path: Path) -> None:
    assert "128 MiB allocated" in disk_note(broker("--store-path", str(tmp_path / "new" / "store")))
    too_large = BrokerConfig(store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=1 << 60)
    assert "this is not enough; free some space" in disk_note(too_large)
    (tmp_path / "commitlog").mkdir()
    assert "allocated" not in disk_note(too_large)


def test_configuration_for_the_real_broker_has_the_existing_index_sizes(tmp_path: Path) -> None:
    index = tmp_path / "index" / "20240101000000000"
    index.parent.mkdir()
    index.write_bytes(bytes(40 + 4 * 1_000 + 20 * 4_000))
    lines = rocketmq_conf(broker("--store-path", str(tmp_path))).splitlines()
    assert {"maxHashSlotNum=1000", "maxIndexNum=4000"} <= set(lines)
    # As configured it fits, however it is divided.
    file = tmp_path / "broker.conf"
    file.write_text("maxHashSlotNum=6000\nmaxIndexNum=3000\n")
    lines = rocketmq_conf(broker("--store-path", str(tmp_path), "-c", str(file))).splitlines()
    assert {"maxHashSlotNum=6000", "maxIndexNum=3000"} <= set(lines)


def test_configuration_for_the_real_broker_is_accepted_by_delaymq(tmp_path: Path) -> None:
    file = tmp_path / "printed.conf"
    file.write_text(rocketmq_conf(broker("--store-path", str(tmp_path / "store"), "--listen-port", "5")))
    config = broker("-c", str(file), command="broker")
    assert (config.listen_port, config.store_path, config.max_index_num) == (5, tmp_path / "store", 2_000_000)


def test_index_of_unknown_layout_is_reported_for_a_migration(tmp_path: Path) -> None:
    index = tmp_path / "index" / "20240101000000000"
    index.parent.mkdir()
    index.write_bytes(bytes(100))
    assert "# The layout of index files of 100 bytes is unknown" in rocketmq_conf(broker("--store-path", str(tmp_path)))


def test_rocketmq_conf_mentions_messages_with_due_times(tmp_path: Path) -> None:
    assert "due times" not in rocketmq_conf(broker("--store-path", str(tmp_path)))
    (tmp_path / "consumequeue/rmq_sys_wheel_timer").mkdir(parents=True)
    text = rocketmq_conf(broker("--store-path", str(tmp_path)))
    assert "# timerMaxDelaySec=315360000\n" in text
    assert "delaymq store verify --for-rocketmq" in text


def test_store_path_that_is_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="is not a directory"):
            disk_note(broker("--store-path", str(path)))


def test_misspelt_variable_is_reported_and_foreign_ones_are_ignored() -> None:
    assert misspelt_variables({"DELAYMQ_LISTEN_PRT": "1", "DELAYMQ_LISTEN_PORT": "1", "PATH": "x"}) == [
        "the environment variable DELAYMQ_LISTEN_PRT is not a setting: did you mean DELAYMQ_LISTEN_PORT?"
    ]
    assert misspelt_variables({"DELAYMQ_NAMESRV": "x", "DELAYMQ_SHOP_SERVICE_HOST": "10.0.0.1"}) == []
