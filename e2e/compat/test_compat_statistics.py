"""RocketMQ's statistics, requested by its administrator, match the sent, stored and received messages."""

import time
from collections.abc import Callable

import pytest
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import ClientError
from harness.operators import Operators, Statistics

FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}
SAMPLE_TIMEOUT_S = 60.0
"""RocketMQ's broker samples every 10 s."""
MESSAGES = 12


@pytest.fixture
def operators(clients: Workbench) -> Operators:
    return Operators(clients)


def wait_sum(operators: Operators, name: str, key: str, expected: int) -> Statistics:
    """Return the statistics once their sum is the expected one."""
    deadline = time.monotonic() + SAMPLE_TIMEOUT_S
    while True:
        try:
            found = operators.statistics(name, key)
            if found.sum == expected:
                return found
            what = f"its sum is {found.sum}"
        except ClientError as error:
            what = error.remark
        assert time.monotonic() < deadline, f"{name} {key} never became {expected}: {what}"
        time.sleep(0.2)


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SAMPLE_TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.2)


def test_put_and_get_statistics_equal_the_traffic(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=2), clients.group(retry_topic=True)
    for number in range(MESSAGES - 4):
        clients.producer.send(topic, f"{number}", queue_id=number % 2)
    clients.producer.send_batch([{"topic": topic, "bodySize": 10} for _ in range(4)])
    consumer = clients.push(topic, group=group, **FIRST)
    got = consumer.inbox.wait_count(MESSAGES)
    got_bytes = sum(m.store_bytes for m in got)

    sent = wait_sum(operators, "TOPIC_PUT_NUMS", topic, MESSAGES)
    assert sent.minute.tps > 0
    # A batch counts as one put.
    assert sent.minute.avgpt == pytest.approx(MESSAGES / (MESSAGES - 3))
    wait_sum(operators, "TOPIC_PUT_SIZE", topic, got_bytes)
    pulled = wait_sum(operators, "GROUP_GET_NUMS", f"{topic}@{group}", MESSAGES)
    assert pulled.minute.avgpt >= 1
    wait_sum(operators, "GROUP_GET_SIZE", f"{topic}@{group}", got_bytes)
    assert operators.statistics("GROUP_GET_LATENCY", f"0@{topic}@{group}").minute.sum >= 0
    assert operators.statistics("BROKER_PUT_NUMS", "DefaultCluster").sum >= MESSAGES
    assert operators.statistics("BROKER_GET_NUMS", "DefaultCluster").sum >= MESSAGES

    assert operators.consume_tps(topic, group) > 0
    wait_until(
        lambda: all(offset == end for offset, end in clients.admin.consumed(group).values()), "the offsets arrived"
    )
    progress = operators.ask("brokerProgress")["groups"][group]
    assert max(each["tps"] for each in progress) > 0
    row = [line.split() for line in clients.mqadmin("statsAll", "-t", topic).splitlines() if line.startswith(topic)]
    ((_, shown_group, behind, in_tps, out_tps, sent_today, got_today),) = row
    assert shown_group == group
    assert (int(behind), int(sent_today), int(got_today)) == (0, MESSAGES, MESSAGES)
    assert float(in_tps) > 0
    assert float(out_tps) > 0


def test_delayed_messages_are_counted_in_schedule_topic_and_in_real_topic(
    new_cluster: Callable[[], Cluster], new_workbench: Callable[[Cluster], Workbench]
) -> None:
    # A separate broker: sums cover the last minute, and would otherwise include messages of other tests.
    with new_cluster() as cluster:
        clients = new_workbench(cluster)
        operators = Operators(clients)

        def of_schedule(name: str, key: str) -> int:
            try:
                return operators.statistics(name, key).sum
            except ClientError:
                return 0

        topic = clients.topic(queues=1)
        for number in range(5):
            clients.producer.send(topic, f"{number}", delayLevel=2)
        wait_sum(operators, "TOPIC_PUT_NUMS", topic, 5)
        for name, key in (
            ("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@1"),
            ("QUEUE_GET_NUMS", "SCHEDULE_TOPIC_XXXX@1@SCHEDULE_CONSUMER"),
            ("GROUP_GET_NUMS", "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER"),
        ):
            wait_until(
                lambda name=name, key=key: of_schedule(name, key) >= 5,
                f"{name} {key} grew by 5",
            )


def test_send_backs_are_counted_for_their_topic(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)
    consumer = clients.push(topic, group=group, failTimes=2, **FIRST)
    for number in range(3):
        clients.producer.send(topic, f"{number}")
    consumer.inbox.wait_count(9, timeout_s=60)
    wait_sum(operators, "SNDBCK_PUT_NUMS", f"{topic}@{group}", 6)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "NobodyKnows"),
        ("GROUP_GET_NUMS", "NobodyKnows@nobody"),
        ("GROUP_GET_FROM_DISK_NUMS", "NobodyKnows@nobody"),
        ("COMMERCIAL_SEND_TIMES", "NobodyKnows"),
        ("NO_SUCH_NAME", "NobodyKnows"),
    ],
)
def test_statistics_that_were_never_counted_do_not_exist(operators: Operators, name: str, key: str) -> None:
    with pytest.raises(ClientError) as unknown:
        operators.statistics(name, key)
    assert (unknown.value.code, unknown.value.remark) == (1, f"The stats <{name}> <{key}> not exist")
