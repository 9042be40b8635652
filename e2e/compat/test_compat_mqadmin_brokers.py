"""mqadmin's commands for brokers: configuration, cleaning, statistics, exports, and send latency."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import mqadmin_golden as golden
from harness import mqadmin_output as output
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import Driver
from harness.mqadmin_golden import Case

FOLDER = "brokers"
TOPIC, GROUP, QUEUES, MESSAGES = "GoldenTopic", "GoldenGroup", 4, 8
SETTINGS = (
    *("autoCreateSubscriptionGroup", "autoCreateTopicEnable", "brokerClusterName", "brokerId", "brokerName"),
    *("brokerPermission", "brokerRole", "fileReservedTime", "flushDiskType", "maxMessageSize", "messageDelayLevel"),
    *("msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable"),
)
"""Settings that administrators and exportConfigs read."""

CASES = [
    Case(name="getBrokerConfig", words="getBrokerConfig -b {broker}", normaliser=output.settings(*SETTINGS)),
    Case(name="getBrokerConfig-cluster", words="getBrokerConfig -c DefaultCluster", normaliser=output.headlines),
    Case(name="updateBrokerConfig", words="updateBrokerConfig -b {broker} -k fileReservedTime -v 24"),
    Case(name="updateBrokerConfig-cluster", words="updateBrokerConfig -c DefaultCluster -k deleteWhen -v 05"),
    Case(
        name="getBrokerConfig-changed",
        words="getBrokerConfig -b {broker}",
        normaliser=output.settings("fileReservedTime", "deleteWhen"),
    ),
    Case(name="brokerConsumeStats", words="brokerConsumeStats -b {broker}"),
    Case(name="brokerConsumeStats-order", words="brokerConsumeStats -b {broker} -o true"),
    Case(name="brokerConsumeStats-behind", words="brokerConsumeStats -b {broker} -l 1"),
    Case(name="cleanExpiredCQ-broker", words="cleanExpiredCQ -b {broker}"),
    Case(name="cleanExpiredCQ-cluster", words="cleanExpiredCQ -c DefaultCluster"),
    Case(name="deleteExpiredCommitLog-broker", words="deleteExpiredCommitLog -b {broker}"),
    Case(name="deleteExpiredCommitLog-cluster", words="deleteExpiredCommitLog -c DefaultCluster"),
    Case(name="topicStatus-kept", words=f"topicStatus -t {TOPIC}"),
    Case(
        name="exportMetadata",
        words="exportMetadata -c DefaultCluster -f {folder}",
        file="{folder}/metadata.json",
        normaliser=output.exported,
    ),
    Case(
        name="exportMetadata-topics",
        words="exportMetadata -b {broker} -t -f {folder}",
        file="{folder}/topic.json",
        normaliser=output.exported,
    ),
    Case(
        name="exportMetadata-special-topics",
        words="exportMetadata -b {broker} -t -s -f {folder}",
        file="{folder}/topic.json",
        normaliser=output.exported,
    ),
    Case(
        name="exportMetadata-groups",
        words="exportMetadata -b {broker} -g -f {folder}",
        file="{folder}/subscriptionGroup.json",
        normaliser=output.exported,
    ),
    Case(
        name="exportConfigs",
        words="exportConfigs -c DefaultCluster -f {folder}",
        file="{folder}/configs.json",
        normaliser=output.exported,
    ),
    Case(
        name="exportMetrics",
        words="exportMetrics -c DefaultCluster -f {folder}",
        file="{folder}/metrics.json",
        normaliser=output.exported,
    ),
    Case(name="clusterRT", words="clusterRT -a 3 -i 1", lines=2, normaliser=output.send_times),
    Case(name="sendMsgStatus", words="sendMsgStatus -b broker-a -c 3", normaliser=output.send_results),
    Case(name="statsAll", words=f"statsAll -t {TOPIC}", normaliser=output.all_statistics),
]
"""Commands in order: later ones depend on changes by earlier ones."""


@pytest.fixture(scope="module")
def printed(
    driver: Driver, new_cluster: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[str]]]:
    """Return the normalised output of each command, on a fresh broker with one topic that a group has half consumed."""
    folder: Path = tmp_path_factory.mktemp("exports")
    yield from golden.printed(driver, new_cluster(), CASES, lambda clients: _fill(clients) | {"folder": str(folder)})


def _fill(clients: Workbench) -> dict[str, str]:
    golden.make_topic(clients, TOPIC, QUEUES)
    clients.mqadmin("updateSubGroup", "-b", clients.broker_address, "-g", GROUP)
    clients.admin.update_topic(f"%RETRY%{GROUP}", broker=clients.broker_address, queues=1)
    clients.wait_for_route(f"%RETRY%{GROUP}")
    for i in range(MESSAGES):
        clients.producer.send(TOPIC, f"m{i}", queue_id=i % QUEUES)
    reader = clients.pull(group=GROUP)
    for queue_id in range(QUEUES):
        reader.pull(TOPIC, queue_id, 0)
        reader.commit(TOPIC, queue_id, 1)
    clients.stop(reader)
    deadline = time.monotonic() + 60
    while len(clients.admin.consumed(GROUP)) < QUEUES:
        assert time.monotonic() < deadline, "the group has no offsets yet"
        time.sleep(0.1)
    return {"broker": clients.broker_address}


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_broker_command_prints_the_same_as_with_rocketmq_broker(
    printed: dict[str, list[str]], name: str, request: pytest.FixtureRequest, against: str
) -> None:
    golden.compare(request, against, FOLDER, name, printed)


def test_every_golden_file_of_brokers_belongs_to_a_command() -> None:
    assert golden.files(FOLDER) == {case.name for case in CASES}
