"""mqadmin's commands for messages: sending, reading, printing, searching, and traces."""

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

FOLDER = "messages"
TOPIC, GROUP = "GoldenTopic", "GoldenGroup"
QUEUES, MESSAGES = 2, 6

CASES = [
    Case(name="queryMsgByOffset", words=f"queryMsgByOffset -t {TOPIC} -b broker-a -i 1 -o 0"),
    Case(name="queryMsgByOffset-beyond", words=f"queryMsgByOffset -t {TOPIC} -b broker-a -i 1 -o 99"),
    Case(name="queryMsgById-illegal", words="queryMsgById -i 7F00000100002A9F0000000000FFFFFF"),
    Case(name="queryMsgByKey-nothing", words=f"queryMsgByKey -t {TOPIC} -k nothing"),
    Case(name="queryCq", words=f"queryCq -t {TOPIC} -q 1 -i 0 -c 2"),
    Case(name="queryCq-broker", words=f"queryCq -t {TOPIC} -q 0 -i 1 -c 10 -b {{broker}}"),
    Case(name="queryCq-group", words=f"queryCq -t {TOPIC} -q 0 -i 0 -c 1 -g {GROUP}", normaliser=output.entries),
    Case(name="queryCq-offline", words=f"queryCq -t {TOPIC} -q 0 -i 0 -c 1 -g Nobody"),
    Case(name="queryCq-beyond", words=f"queryCq -t {TOPIC} -q 0 -i 99 -c 1", code_only=True),
    Case(name="queryCq-no-queue", words=f"queryCq -t {TOPIC} -q 17 -i 0 -c 1", code_only=True),
    Case(name="printMsg", words=f"printMsg -t {TOPIC}", normaliser=output.messages),
    Case(name="printMsg-tag", words=f"printMsg -t {TOPIC} -s TagB -d false", normaliser=output.messages),
    Case(name="printMsg-times", words=f"printMsg -t {TOPIC} -b {{before}} -e {{after}}", normaliser=output.messages),
    Case(
        name="printMsgByQueue",
        words=f"printMsgByQueue -t {TOPIC} -a broker-a -i 1 -p true -d true -f true",
        normaliser=output.messages,
    ),
    Case(
        name="printMsgByQueue-tag",
        words=f"printMsgByQueue -t {TOPIC} -a broker-a -i 0 -s TagA -f true",
        normaliser=output.messages,
    ),
    Case(name="consumeMessage", words=f"consumeMessage -t {TOPIC}", normaliser=output.messages),
    Case(
        name="consumeMessage-queue",
        words=f"consumeMessage -t {TOPIC} -b broker-a -i 1 -c 2",
        normaliser=output.messages,
    ),
    Case(
        name="consumeMessage-offset",
        words=f"consumeMessage -t {TOPIC} -b broker-a -i 1 -o 2 -g AnyGroup",
        normaliser=output.messages,
    ),
    Case(
        name="sendMessage",
        words=f"sendMessage -t {TOPIC} -p body -k sentKey -c TagC -b broker-a -i 1",
    ),
    Case(name="queryMsgByKey-sent", words=f"queryMsgByKey -t {TOPIC} -k sentKey"),
    Case(name="sendMessage-nowhere", words="sendMessage -t Nowhere -p body -b broker-a -i 0", code_only=True),
    Case(name="queryMsgTraceById", words="queryMsgTraceById -i {traced}", normaliser=output.traces),
    Case(name="queryMsgTraceById-untraced", words="queryMsgTraceById -i " + "F" * 32),
    Case(name="checkMsgSendRT", words=f"checkMsgSendRT -t {TOPIC} -a 4", normaliser=output.round_trips),
    Case(name="topicStatus-end", words=f"topicStatus -t {TOPIC}"),
]
"""Commands in order: later ones depend on changes by earlier ones."""


@pytest.fixture(scope="module")
def printed(driver: Driver, new_cluster: Callable[..., Cluster]) -> Iterator[dict[str, list[str]]]:
    """Return the normalised output of each command, on a fresh broker with one topic and the traces of one message."""
    cluster = new_cluster(traceTopicEnable="true", autoCreateTopicEnable="false")
    yield from golden.printed(driver, cluster, CASES, _fill)


def _fill(clients: Workbench) -> dict[str, str]:
    golden.make_topic(clients, TOPIC, QUEUES)
    before_ms = int(time.time() * 1000) - 1000
    for i in range(MESSAGES):
        fields = {"tags": "TagA" if i % 3 else "TagB", "keys": f"key{i}"}
        clients.producer.send(TOPIC, f"m{i}", queue_id=i % QUEUES, **fields)
    after_ms = int(time.time() * 1000) + 1000
    # The next message is traced both when sent and when consumed.
    clients.admin.update_topic(f"%RETRY%{GROUP}", broker=clients.broker_address, queues=1)
    clients.wait_for_route(f"%RETRY%{GROUP}")
    consumer = clients.push(TOPIC, group=GROUP, trace=True)
    producer = clients.new_producer(group="TracedProducers", trace=True)
    traced = producer.send(TOPIC, "traced", queue_id=0).message_id
    consumer.inbox.wait_for(lambda messages: any(each.body == b"traced" for each in messages), timeout_s=60)
    _wait_for_traces(clients, traced, "Pub", "SubAfter")
    _wait_until_read(clients)
    return {"broker": clients.broker_address, "before": str(before_ms), "after": str(after_ms), "traced": traced}


def _wait_until_read(clients: Workbench) -> None:
    """Wait for the group's offset, stored by a member at intervals, which shows whether a message was consumed."""
    deadline = time.monotonic() + 60
    while True:
        consumed: dict[tuple[str, int], tuple[int, int]] = {}
        with suppress(ClientError):  # none is stored yet
            consumed = clients.admin.consumed(GROUP)
        if len(consumed) == QUEUES + 1 and all(at == end for at, end in consumed.values()):
            return
        assert time.monotonic() < deadline, f"the group stored only {consumed}"
        time.sleep(0.1)


def _wait_for_traces(clients: Workbench, message_id: str, *kinds: str) -> None:
    """Wait for traces of the send and of the consumption, which clients send asynchronously in batches."""
    deadline = time.monotonic() + 60
    while not all(any(trace.startswith(kind) for trace in _traces(clients, message_id)) for kind in kinds):
        assert time.monotonic() < deadline, f"expected traces {kinds}, but found {_traces(clients, message_id)}"
        time.sleep(0.1)


def _traces(clients: Workbench, message_id: str) -> list[str]:
    try:
        bodies = [found.body.decode() for found in clients.admin.query("RMQ_SYS_TRACE_TOPIC", message_id)]
    except ClientError:
        return []
    return [trace for body in bodies for trace in body.split("\x02") if message_id in trace]


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_message_command_prints_the_same_as_with_rocketmq_broker(
    printed: dict[str, list[str]], name: str, request: pytest.FixtureRequest, against: str
) -> None:
    golden.compare(request, against, FOLDER, name, printed)


def test_every_golden_file_of_messages_belongs_to_a_command() -> None:
    assert golden.files(FOLDER) == {case.name for case in CASES}
