"""mqadmin's commands for topics and order settings."""

from collections.abc import Callable, Iterator

import pytest
from harness import mqadmin_golden as golden
from harness import mqadmin_output as output
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import Driver
from harness.mqadmin_golden import Case

FOLDER = "topics"
TOPIC, QUEUES = "GoldenTopic", 4

CASES = [
    Case(name="updateTopic-unit", words="updateTopic -t Unit -b {broker} -r 2 -w 2 -u true -s true"),
    Case(name="topicRoute-unit", words="topicRoute -t Unit"),
    Case(name="updateTopic-system", words="updateTopic -t TBW102 -b {broker}"),
    Case(name="updateTopic-illegal", words="updateTopic -t a!b -b {broker}", code_only=True),
    Case(name="updateTopic-long", words="updateTopic -t " + "x" * 128 + " -b {broker}", code_only=True),
    Case(name="updateTopicPerm-broker", words=f"updateTopicPerm -t {TOPIC} -b {{broker}} -p 4"),
    Case(name="updateTopicPerm-same", words=f"updateTopicPerm -t {TOPIC} -b {{broker}} -p 4"),
    Case(name="topicRoute-read-only", words=f"topicRoute -t {TOPIC}"),
    Case(name="updateTopicPerm-cluster", words=f"updateTopicPerm -t {TOPIC} -c DefaultCluster -p 6"),
    Case(name="updateTopicPerm-no-broker", words=f"updateTopicPerm -t {TOPIC} -b 127.0.0.1:1 -p 4"),
    Case(name="topicClusterList", words=f"topicClusterList -t {TOPIC}"),
    Case(name="topicClusterList-unknown", words="topicClusterList -t Nowhere"),
    Case(name="topicList-clusters", words="topicList -c", normaliser=output.topic_list),
    Case(name="topicStatus-empty", words=f"topicStatus -t {TOPIC}"),
    Case(name="topicStatus-unknown", words="topicStatus -t Nowhere"),
    Case(name="allocateMQ", words=f"allocateMQ -t {TOPIC} -i 10.0.0.1,10.0.0.2,10.0.0.3"),
    # Order settings: the NameServer stores the number of queues per broker, and returns it in routes if enabled.
    Case(name="updateTopic-order", words="updateTopic -t Ordered -c DefaultCluster -r 4 -w 4 -o true"),
    Case(name="updateOrderConf-get", words="updateOrderConf -t Ordered -m get"),
    Case(name="topicRoute-order-off", words="topicRoute -t Ordered"),
    Case(name="updateNamesrvConfig-order", words="updateNamesrvConfig -k orderMessageEnable -v true"),
    Case(name="topicRoute-ordered", words="topicRoute -t Ordered"),
    Case(name="updateTopic-order-broker", words="updateTopic -t OrderedHere -b {broker} -r 3 -w 3 -o true"),
    Case(name="topicRoute-ordered-here", words="topicRoute -t OrderedHere"),
    Case(name="updateOrderConf-put", words="updateOrderConf -t Ordered -m put -v broker-a:2"),
    Case(name="topicRoute-ordered-by-two", words="topicRoute -t Ordered"),
    Case(name="updateOrderConf-nothing", words="updateOrderConf -t Ordered -m put"),
    Case(name="updateOrderConf-delete", words="updateOrderConf -t Ordered -m delete"),
    Case(name="updateOrderConf-gone", words="updateOrderConf -t Ordered -m get"),
    Case(name="topicRoute-no-order", words="topicRoute -t Ordered"),
    Case(name="deleteTopic", words="deleteTopic -t Ordered -c DefaultCluster"),
    Case(name="deleteTopic-again", words="deleteTopic -t Ordered -c DefaultCluster"),
    Case(name="deleteTopic-system", words="deleteTopic -t SCHEDULE_TOPIC_XXXX -c DefaultCluster"),
    Case(name="cleanUnusedTopic-broker", words="cleanUnusedTopic -b {broker}"),
    Case(name="cleanUnusedTopic-cluster", words="cleanUnusedTopic -c DefaultCluster"),
    Case(name="topicList-end", words="topicList", normaliser=output.topic_list),
]
"""Commands in order: later ones depend on changes by earlier ones."""


@pytest.fixture(scope="module")
def printed(driver: Driver, new_cluster: Callable[..., Cluster]) -> Iterator[dict[str, list[str]]]:
    """Return the normalised output of each command, on a fresh broker."""
    yield from golden.printed(driver, new_cluster(), CASES, _fill)


def _fill(clients: Workbench) -> dict[str, str]:
    golden.make_topic(clients, TOPIC, QUEUES)
    return {"broker": clients.broker_address}


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_topic_command_prints_the_same_as_with_rocketmq_broker(
    printed: dict[str, list[str]], name: str, request: pytest.FixtureRequest, against: str
) -> None:
    golden.compare(request, against, FOLDER, name, printed)


def test_every_golden_file_of_topics_belongs_to_a_command() -> None:
    assert golden.files(FOLDER) == {case.name for case in CASES}
