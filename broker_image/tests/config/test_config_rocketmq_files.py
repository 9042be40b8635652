"""RocketMQ's keys, and the configuration files of its distribution and its users."""

from pathlib import Path

import pytest
from delaymq.config import BrokerConfig, ConfigError, NamesrvConfig, keys_of, parse_properties_text, resolve
from delaymq.config.known_keys import REFUSED, WITHOUT_MEANING
from delaymq.config.layers import file_layer, same_origin

FILES = Path(__file__).parent / "rocketmq_conf"
ALL_KEYS = parse_properties_text((FILES / "every-key.conf").read_text())


def problems_of(name: str) -> list[str]:
    try:
        resolve(BrokerConfig, file_layer(FILES / name)[0])
    except ConfigError as error:
        return [problem.rpartition(f"{name}:")[2] for problem in error.problems]
    return []


def test_list_of_rocketmq_keys_is_complete() -> None:
    assert len(ALL_KEYS) == 206  # of its five configuration classes and its TLS properties


@pytest.mark.parametrize("key", sorted(ALL_KEYS))
def test_each_rocketmq_key_is_used_ignored_or_rejected(key: str) -> None:
    is_used = key in keys_of(BrokerConfig) or key in keys_of(NamesrvConfig)
    assert [is_used, key in WITHOUT_MEANING, key in REFUSED].count(True) == 1


def test_file_with_every_key_as_saved_by_rocketmq_works_unchanged() -> None:
    layer, notes = file_layer(FILES / "every-key.conf")
    resolved = resolve(BrokerConfig, layer)
    # RocketMQ has both in two of its classes, and one file for all of them.
    assert {note.partition(" ")[0] for note in notes} == {
        "configBlackList",
        "rocketmqHome",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    }
    assert resolved.config.broker_name == "broker-host"
    assert resolved.config.store_path_root_dir == "/home/rocketmq/store"
    assert {"sendMessageThreadPoolNums", "serverWorkerThreads", "kvConfigPath"} <= resolved.ignored.keys()


@pytest.mark.parametrize(
    "name",
    [
        "broker.conf",
        *(f"{folder}-broker-{name}.properties" for folder in ("2m-noslave", "2m-2s-async") for name in "ab"),
    ],
)
def test_files_of_masters_with_asynchronous_slaves_work_unchanged(name: str) -> None:
    layer, notes = file_layer(FILES / name)
    resolved = resolve(BrokerConfig, layer)
    assert (notes, dict(resolved.ignored)) == ([], {})
    assert resolved.config.file_reserved_time == 48
    assert resolved.origins["fileReservedTime"] == f"{FILES / name}:5"
    assert resolved.origins["listenPort"] == "default"


@pytest.mark.parametrize("name", ["a", "b"])
def test_synchronous_master_is_rejected(name: str) -> None:
    assert problems_of(f"2m-2s-sync-broker-{name}.properties") == [
        "brokerRole=SYNC_MASTER: responses cannot wait for replicas, since haMembers is empty: list all members of the"
        " group, or use ASYNC_MASTER"
    ]


@pytest.mark.parametrize("folder", ["2m-2s-async", "2m-2s-sync"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_slaves_need_the_address_of_their_master(folder: str, name: str) -> None:
    assert problems_of(f"{folder}-broker-{name}-s.properties") == [
        "brokerRole=SLAVE: haMasterAddress is empty: set it to the master's address and haListenPort, remove this"
        " broker, or use replicas (haMembers)"
    ]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_dledger_is_rejected_key_by_key(number: int) -> None:
    assert [problem.partition("=")[0] for problem in problems_of(f"dledger-broker-n{number}.conf")] == [
        "7: enableDLegerCommitLog",
        "8: dLegerGroup",
        "9: dLegerPeers",
        "11: dLegerSelfId",
    ]


def test_typical_tutorial_file_works_and_old_keys_are_named() -> None:
    resolved = resolve(BrokerConfig, file_layer(FILES / "people.conf")[0])
    assert resolved.config.name_servers == (("rocketmq-nameserver1", 9876), ("rocketmq-nameserver2", 9876))
    # Misspelt since RocketMQ 3, ignored by RocketMQ 4.9 too, without a message.
    assert {"mapedFileSizeCommitLog", "checkTransactionMessageEnable", "abortFile"} <= resolved.ignored.keys()
    assert resolved.config.mapped_file_size_commit_log == 1 << 30


@pytest.mark.parametrize("path", ["/data/commitlog", "/data//commitlog/", "store/commitlog"])
def test_default_log_folder_may_be_named(path: str) -> None:
    text = f"storePathRootDir={'store' if path.startswith('store') else '/data'}\nstorePathCommitLog={path}\n"
    layer = parse_properties_text(text)
    moved = same_origin({"storePathRootDir": "/elsewhere"}, "flag --store-path")
    assert resolve(BrokerConfig, same_origin(layer, "file"), moved).config.store_path_root_dir == "/elsewhere"


@pytest.mark.parametrize("path", ["/other/commitlog", "/data/commitlog,/more/commitlog", "commitlog"])
def test_another_log_folder_is_rejected(path: str) -> None:
    layer = same_origin({"storePathRootDir": "/data", "storePathCommitLog": path}, "file")
    with pytest.raises(ConfigError, match="always in storePathRootDir/commitlog"):
        resolve(BrokerConfig, layer)
