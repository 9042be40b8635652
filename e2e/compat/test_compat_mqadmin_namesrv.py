"""mqadmin's commands for NameServers: settings by key, write permission, configuration."""

from collections.abc import Callable, Iterator

import pytest
from harness import mqadmin_golden as golden
from harness import mqadmin_output as output
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import Driver
from harness.mqadmin_golden import Case

FOLDER = "namesrv"
TOPIC, QUEUES = "GoldenTopic", 4
SETTINGS = ("kvConfigPath", "orderMessageEnable")
"""Keys of RocketMQ's NameServer that DelayMQ supports; the values of paths differ."""

CASES = [
    Case(name="updateKvConfig", words="updateKvConfig -s SOME_SPACE -k colour -v blue"),
    Case(name="updateKvConfig-order", words=f"updateKvConfig -s ORDER_TOPIC_CONFIG -k {TOPIC} -v broker-a:3"),
    Case(name="updateOrderConf-of-key", words=f"updateOrderConf -t {TOPIC} -m get"),
    Case(name="deleteKvConfig", words=f"deleteKvConfig -s ORDER_TOPIC_CONFIG -k {TOPIC}"),
    Case(name="deleteKvConfig-again", words=f"deleteKvConfig -s ORDER_TOPIC_CONFIG -k {TOPIC}"),
    Case(name="deleteKvConfig-nowhere", words="deleteKvConfig -s NO_SPACE -k colour"),
    Case(name="updateOrderConf-of-no-key", words=f"updateOrderConf -t {TOPIC} -m get"),
    Case(name="wipeWritePerm", words="wipeWritePerm -b broker-a"),
    Case(name="topicRoute-wiped", words=f"topicRoute -t {TOPIC}"),
    Case(name="wipeWritePerm-unknown", words="wipeWritePerm -b nobody"),
    Case(name="addWritePerm", words="addWritePerm -b broker-a"),
    Case(name="topicRoute-added", words=f"topicRoute -t {TOPIC}"),
    Case(name="topicRoute-template", words="topicRoute -t TBW102"),
    Case(name="addWritePerm-unknown", words="addWritePerm -b nobody"),
    Case(name="getNamesrvConfig", words="getNamesrvConfig", normaliser=output.settings(*SETTINGS)),
    Case(name="updateNamesrvConfig", words="updateNamesrvConfig -k orderMessageEnable -v true"),
    Case(name="getNamesrvConfig-changed", words="getNamesrvConfig", normaliser=output.settings("orderMessageEnable")),
    Case(name="updateNamesrvConfig-path", words="updateNamesrvConfig -k kvConfigPath -v elsewhere", code_only=True),
    Case(name="updateNamesrvConfig-list", words="updateNamesrvConfig -k configStorePath -v elsewhere", code_only=True),
]
"""Commands in order: later ones depend on changes by earlier ones."""


@pytest.fixture(scope="module")
def printed(driver: Driver, new_cluster: Callable[..., Cluster]) -> Iterator[dict[str, list[str]]]:
    """Return the normalised output of each command, on a fresh NameServer with one broker."""
    yield from golden.printed(driver, new_cluster(), CASES, _fill)


def _fill(clients: Workbench) -> dict[str, str]:
    golden.make_topic(clients, TOPIC, QUEUES)
    return {"broker": clients.broker_address}


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_name_server_command_prints_the_same_as_with_rocketmq_name_server(
    printed: dict[str, list[str]], name: str, request: pytest.FixtureRequest, against: str
) -> None:
    golden.compare(request, against, FOLDER, name, printed)


def test_every_golden_file_of_name_servers_belongs_to_a_command() -> None:
    assert golden.files(FOLDER) == {case.name for case in CASES}
