"""mqadmin's commands for groups: settings, members, progress, and offset resets."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from harness import mqadmin_golden as golden
from harness import mqadmin_output as output
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import ClientError, Driver
from harness.mqadmin_golden import Case

FOLDER = "groups"
TOPIC, GROUP, ONLINE, PRODUCERS = "GoldenTopic", "GoldenGroup", "GoldenOnline", "GoldenProducers"
QUEUES, MESSAGES = 4, 8

CASES = [
    Case(
        name="updateSubGroup",
        words="updateSubGroup -b {broker} -g Changed -s false -m true -d true -q 2 -r 3 -i 0 -w 2 -a false",
    ),
    Case(name="getConsumerConfig", words="getConsumerConfig -g Changed"),
    Case(name="updateSubGroup-cluster", words="updateSubGroup -c DefaultCluster -g Changed"),
    Case(name="getConsumerConfig-changed", words="getConsumerConfig -g Changed"),
    Case(name="consumerConnection-offline", words=f"consumerConnection -g {GROUP}"),
    Case(name="consumerConnection", words=f"consumerConnection -g {ONLINE} -b {{broker}}"),
    Case(name="consumerStatus", words=f"consumerStatus -g {ONLINE}", normaliser=output.running),
    Case(name="consumerStatus-client", words=f"consumerStatus -g {ONLINE} -i {{client}}", normaliser=output.running),
    Case(
        name="consumerStatus-stacks",
        words=f"consumerStatus -g {ONLINE} -i {{client}} -s",
        normaliser=output.of("#Consumer jstack"),
    ),
    Case(name="consumerStatus-offline", words=f"consumerStatus -g {GROUP}"),
    Case(name="consumerStatus-unknown-client", words=f"consumerStatus -g {ONLINE} -i nobody@1", code_only=True),
    Case(name="producerConnection", words=f"producerConnection -g {PRODUCERS} -t {TOPIC}"),
    Case(name="producerConnection-unknown", words=f"producerConnection -g nobody -t {TOPIC}", code_only=True),
    Case(name="producer", words="producer -b {broker}", normaliser=output.producers(PRODUCERS)),
    Case(name="consumerProgress", words=f"consumerProgress -g {GROUP}", normaliser=output.consumer_progress),
    Case(
        name="consumerProgress-clients",
        words=f"consumerProgress -g {ONLINE} -s true",
        normaliser=output.consumer_progress,
    ),
    Case(name="consumerProgress-unknown", words="consumerProgress -g Nobody"),
    Case(name="cloneGroupOffset", words=f"cloneGroupOffset -s {GROUP} -d Clone -t {TOPIC}"),
    Case(name="consumerProgress-clone", words="consumerProgress -g Clone", normaliser=output.consumer_progress),
    Case(
        name="resetOffsetByTime-offline",
        words=f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s {{before}}",
        normaliser=output.resets,
    ),
    Case(name="consumerProgress-reset", words=f"consumerProgress -g {GROUP}", normaliser=output.consumer_progress),
    Case(
        name="skipAccumulatedMessage-offline",
        words=f"skipAccumulatedMessage -g {GROUP} -t {TOPIC}",
        normaliser=output.resets,
    ),
    Case(name="consumerProgress-skipped", words=f"consumerProgress -g {GROUP}", normaliser=output.consumer_progress),
    Case(
        name="resetOffsetByTime",
        words=f"resetOffsetByTime -g {ONLINE} -t {TOPIC} -s {{before}}",
        normaliser=output.resets,
    ),
    Case(
        name="skipAccumulatedMessage", words=f"skipAccumulatedMessage -g {ONLINE} -t {TOPIC}", normaliser=output.resets
    ),
    Case(name="resetOffsetByTime-topic", words=f"resetOffsetByTime -g {ONLINE} -t Nowhere -s {{before}}"),
    Case(name="deleteSubGroup", words="deleteSubGroup -b {broker} -g Changed"),
    Case(name="getConsumerConfig-deleted", words="getConsumerConfig -g Changed"),
    Case(name="deleteSubGroup-cluster", words=f"deleteSubGroup -c DefaultCluster -g {GROUP} -r true"),
    Case(name="topicList-without-group", words="topicList", normaliser=output.topic_list),
    Case(name="brokerConsumeStats-without-group", words="brokerConsumeStats -b {broker}", normaliser=output.of(GROUP)),
]
"""Commands in order: later ones depend on changes by earlier ones."""


@pytest.fixture(scope="module")
def printed(driver: Driver, new_cluster: Callable[..., Cluster]) -> Iterator[dict[str, list[str]]]:
    """Return the normalised output of each command: one group has consumed half a topic, one is online."""
    yield from golden.printed(driver, new_cluster(), CASES, _fill)


def _fill(clients: Workbench) -> dict[str, str]:
    """Return values for the commands: a time before the first message, and a member's client id."""
    golden.make_topic(clients, TOPIC, QUEUES)
    for group in (GROUP, ONLINE, "Clone"):
        clients.mqadmin("updateSubGroup", "-b", clients.broker_address, "-g", group)
        clients.admin.update_topic(f"%RETRY%{group}", broker=clients.broker_address, queues=1)
        clients.wait_for_route(f"%RETRY%{group}")
    before_ms = int(time.time() * 1000) - 1000
    producer = clients.new_producer(group=PRODUCERS)
    for i in range(MESSAGES):
        producer.send(TOPIC, f"m{i}", queue_id=i % QUEUES)
    reader = clients.pull(group=GROUP)
    for queue_id in range(QUEUES):
        reader.commit(TOPIC, queue_id, 1)
    clients.stop(reader)
    member = clients.push(TOPIC, group=ONLINE, **{"from": "CONSUME_FROM_FIRST_OFFSET"})
    member.inbox.wait_count(MESSAGES)
    _wait_until(lambda: len(clients.admin.consumed(GROUP)) == QUEUES, "the offsets of a group")
    _wait_until(lambda: _is_read(clients), "the offsets of the members")
    return {"broker": clients.broker_address, "before": str(before_ms), "client": member.client_id}


def _is_read(clients: Workbench) -> bool:
    consumed: dict[tuple[str, int], tuple[int, int]] = {}
    with suppress(ClientError):  # none is stored yet
        consumed = clients.admin.consumed(ONLINE)
    return len(consumed) == QUEUES + 1 and all(at == end for at, end in consumed.values())


def _wait_until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.1)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_group_command_prints_the_same_as_with_rocketmq_broker(
    printed: dict[str, list[str]], name: str, request: pytest.FixtureRequest, against: str
) -> None:
    golden.compare(request, against, FOLDER, name, printed)


def test_every_golden_file_of_groups_belongs_to_a_command() -> None:
    assert golden.files(FOLDER) == {case.name for case in CASES}
