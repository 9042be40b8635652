"""RocketMQ's configuration keys match its classes; mqadmin changes DelayMQ's settings in the same way as RocketMQ's."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaymq.config import parse_properties_text, read_properties_file
from harness import java
from harness.brokers import Cluster
from harness.driver import Driver

pytestmark = pytest.mark.ours_only  # saved and rejected settings differ from RocketMQ's on purpose

KEYS = Path(__file__).parents[2] / "broker_image" / "tests" / "config" / "rocketmq_conf" / "every-key.conf"
JAVAP_TIMEOUT_S = 120
CLASSES = (
    "org.apache.rocketmq.common.BrokerConfig",
    "org.apache.rocketmq.store.config.MessageStoreConfig",
    "org.apache.rocketmq.remoting.netty.NettyServerConfig",
    "org.apache.rocketmq.remoting.netty.NettyClientConfig",
    "org.apache.rocketmq.common.namesrv.NamesrvConfig",
)
SETTER = re.compile(r" void set(\w)(\w*)\((?:int|long|double|boolean|float|java\.lang\.String)\)")
"""RocketMQ sets keys for which a class has a setter of a simple type; the key is derived from the setter's name."""


def test_key_list_of_the_tests_contains_every_key_of_rocketmq_classes() -> None:
    command = ["javap", "-public", "-cp", java.class_path("broker"), *CLASSES]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=JAVAP_TIMEOUT_S, check=True).stdout
    keys = {first.lower() + rest for first, rest in SETTER.findall(shown)}
    assert len(keys) > 180
    assert keys <= set(parse_properties_text(KEYS.read_text()))


@pytest.fixture
def cluster(new_cluster: "type[Cluster]") -> Iterator[Cluster]:
    with new_cluster() as made:
        yield made


def mqadmin(driver: Driver, cluster: Cluster, command: str, *arguments: str) -> str:
    words = [command, *arguments, "-n", cluster.namesrv_address]
    answer = driver.call("mqadmin", arguments=words)
    return f"{answer['output']}\n{answer['errors']}"


def test_settings_changed_by_mqadmin_are_saved_to_the_file(driver: Driver, cluster: Cluster) -> None:
    def change(key: str, value: str) -> str:
        return mqadmin(driver, cluster, "updateBrokerConfig", "-b", cluster.broker_address, "-k", key, "-v", value)

    file = cluster.base_path / "broker.conf"
    assert "update broker config success" in change("fileReservedTime", "24")
    shown = mqadmin(driver, cluster, "getBrokerConfig", "-b", cluster.broker_address)
    assert re.search(r"fileReservedTime\s*=\s*24\b", shown)
    assert "update broker config success" in change("regionId", "elsewhere")  # takes effect after a restart
    assert "cannot be changed over the network" in change("storePathRootDir", "/tmp/elsewhere")
    assert "did you mean fileReservedTime" in change("fileReservedTim", "24")
    kept = read_properties_file(file)
    assert (kept["fileReservedTime"], kept["regionId"]) == ("24", "elsewhere")
    assert "/tmp/elsewhere" not in file.read_text()


def test_mqadmin_changes_settings_of_name_server(driver: Driver, cluster: Cluster) -> None:
    text = mqadmin(driver, cluster, "updateNamesrvConfig", "-k", "routeGraceMs", "-v", "20000")
    assert "update name server config success" in text
    assert re.search(r"routeGraceMs\s*=\s*20000\b", mqadmin(driver, cluster, "getNamesrvConfig"))
    text = mqadmin(driver, cluster, "updateNamesrvConfig", "-k", "kvConfigPath", "-v", "/tmp/x")
    assert "cannot be changed over the network" in text
