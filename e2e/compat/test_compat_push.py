"""RocketMQ's push consumer: distribution, order, start positions, and resumption."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from harness.brokers import Cluster
from harness.clients import PushConsumer, Workbench
from harness.driver import Received

pytestmark = pytest.mark.core

REBALANCE_TIMEOUT_S = 60.0
"""Members of a group discover each other by a notification, or at the next rebalance after at most 20 s."""
FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}


def bodies(messages: list[Received]) -> list[str]:
    return sorted(m.body.decode() for m in messages)


def send_all(clients: Workbench, topic: str, count: int, prefix: str = "m") -> list[str]:
    """Send ``count`` messages to all queues in rotation; return their bodies, sorted."""
    names = [f"{prefix}{i:03}" for i in range(count)]
    for name in names:
        clients.producer.send(topic, name)
    return names


def test_idle_consumer_receives_a_new_message_immediately(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    clients.producer.send(topic, "warm up")
    consumer.inbox.wait_count(1)
    for i in range(5):
        clients.producer.send(topic, f"m{i}")
        consumer.inbox.wait_count(i + 2)
    waits_ms = sorted(m.arrival_timestamp_ms - m.store_timestamp_ms for m in consumer.inbox.messages()[1:])
    assert waits_ms[2] < 100


def test_two_members_of_a_group_share_the_queues(clients: Workbench) -> None:
    topic, group = clients.topic(queues=4), clients.group()
    members = [clients.push(topic, group=group) for _ in range(2)]
    assert clients.admin.consumers(group) == sorted(member.client_id for member in members)
    got = _send_until_both_receive(clients, topic, members)
    queues = [{m.queue_id for m in messages} for messages in got]
    assert [len(q) for q in queues] == [2, 2]
    assert queues[0].isdisjoint(queues[1])


def _send_until_both_receive(clients: Workbench, topic: str, members: list[PushConsumer]) -> list[list[Received]]:
    """Send one message to each queue until a round is shared evenly; return that round's messages by member."""
    deadline = time.monotonic() + REBALANCE_TIMEOUT_S
    for turn in range(1000):
        names = {f"r{turn}-{queue_id}" for queue_id in range(4)}
        for queue_id in range(4):
            clients.producer.send(topic, f"r{turn}-{queue_id}", queue_id=queue_id)
        arrived: list[list[Received]] = []
        while sum(map(len, arrived)) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
            arrived = [[m for m in member.inbox.messages() if m.body.decode() in names] for member in members]
        if all(len(messages) == 2 for messages in arrived):
            return arrived
        assert time.monotonic() < deadline, "the members never shared the queues"
    raise AssertionError("unreachable")


def test_remaining_member_takes_over_queues_of_a_member_that_leaves(clients: Workbench) -> None:
    topic, group = clients.topic(queues=4), clients.group()
    stays, leaves = clients.push(topic, group=group), clients.push(topic, group=group)
    _send_until_both_receive(clients, topic, [stays, leaves])
    clients.stop(leaves)
    expected = [f"after{queue_id}" for queue_id in range(4)]
    for queue_id in range(4):
        clients.producer.send(topic, expected[queue_id], queue_id=queue_id)
    stays.inbox.wait_for(
        lambda messages: {m.body.decode() for m in messages} >= set(expected), timeout_s=REBALANCE_TIMEOUT_S
    )


def test_every_broadcasting_consumer_receives_every_message(clients: Workbench) -> None:
    topic, group = clients.topic(queues=4), clients.group()
    members = [clients.push(topic, group=group, broadcasting=True, **FIRST) for _ in range(2)]
    sent = send_all(clients, topic, 12)
    for member in members:
        member.inbox.wait_count(12)
        assert bodies(member.inbox.messages()) == sent


def test_each_of_two_groups_receives_every_message(clients: Workbench) -> None:
    topic = clients.topic(queues=2)
    consumers = [clients.push(topic, group=clients.group(), **FIRST) for _ in range(2)]
    sent = send_all(clients, topic, 10)
    for consumer in consumers:
        assert bodies(consumer.inbox.wait_count(10)) == sent


def test_orderly_consumer_receives_each_queue_in_order_despite_failures(clients: Workbench) -> None:
    topic = clients.topic(queues=2)
    consumer = clients.push(topic, group=clients.group(), orderly=True, failTimes=2, suspendMs=50, **FIRST)
    for i in range(10):
        clients.producer.send(topic, f"{i}", queue_id=i % 2)
    messages = consumer.inbox.wait_for(lambda got: len(_accepted(got, 2)) == 10, timeout_s=30)
    for queue_id in range(2):
        in_queue = [m for m in messages if m.queue_id == queue_id]
        assert [int(m.body) for m in _accepted(in_queue, 2)] == list(range(queue_id, 10, 2))
        # A failed message blocks its queue: each is received three times in succession.
        assert [int(m.body) for m in in_queue] == [i for i in range(queue_id, 10, 2) for _ in range(3)]


def _accepted(messages: list[Received], fail_times: int) -> list[Received]:
    return [m for m in messages if m.reconsume_times >= fail_times]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("*", ["a", "b", "c", "none"]), ("TagA", ["a"]), ("TagA || TagC", ["a", "c"]), ("TagX", [])],
)
def test_group_receives_only_its_subscribed_tags(clients: Workbench, expression: str, expected: list[str]) -> None:
    topic = clients.topic(queues=1)
    consumer = clients.push(topic, group=clients.group(), expression=expression, **FIRST)
    for tag, body in (("TagA", "a"), ("TagB", "b"), ("TagC", "c")):
        clients.producer.send(topic, body, tags=tag)
    clients.producer.send(topic, "none")
    if expected:
        consumer.inbox.wait_count(len(expected))
    time.sleep(0.3)
    assert bodies(consumer.inbox.messages()) == expected


def test_tags_with_equal_hash_codes_are_distinguished(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    # "Aa" and "BB" have the same Java hash code, the only part of a tag that a queue entry contains.
    consumer = clients.push(topic, group=clients.group(), expression="Aa", **FIRST)
    clients.producer.send(topic, "wrong", tags="BB")
    clients.producer.send(topic, "right", tags="Aa")
    assert bodies(consumer.inbox.wait_count(1)) == ["right"]


def test_group_resumes_at_its_committed_offsets(clients: Workbench) -> None:
    topic, group = clients.topic(queues=2), clients.group()
    first = clients.push(topic, group=group, **FIRST)
    send_all(clients, topic, 10, "before")
    first.inbox.wait_count(10)
    # A clean shutdown stores the offsets; a pull in progress then could set an older one.
    time.sleep(0.5)
    clients.stop(first)
    expected = send_all(clients, topic, 6, "while-away")
    second = clients.push(topic, group=group, **FIRST)
    second.inbox.wait_count(6)
    time.sleep(0.5)
    assert bodies(second.inbox.messages()) == expected


def test_new_group_starts_at_the_requested_position(
    strict_cluster: Cluster, new_workbench: Callable[[Cluster], Workbench]
) -> None:
    clients = new_workbench(strict_cluster)
    topic = clients.topic(queues=1)
    old = send_all(clients, topic, 3, "old")
    # consumeTimestamp has a resolution of seconds, and consumption starts at the nearest message.
    time.sleep(2.2)
    middle = datetime.fromtimestamp(int(time.time()), tz=UTC).astimezone()
    new = send_all(clients, topic, 3, "new")

    timestamp = middle.strftime("%Y%m%d%H%M%S")
    from_first = clients.push(topic, group=known_group(clients), **FIRST)
    options = {"from": "CONSUME_FROM_TIMESTAMP", "timestamp": timestamp}
    from_timestamp = clients.push(topic, group=known_group(clients), **options)
    from_last = clients.push(topic, group=known_group(clients), **{"from": "CONSUME_FROM_LAST_OFFSET"})
    from_first.inbox.wait_count(6)
    from_timestamp.inbox.wait_count(3)
    # The last offset is determined soon after the start.
    time.sleep(1.5)
    newest = send_all(clients, topic, 3, "newest")
    assert bodies(from_first.inbox.wait_count(9)) == sorted(old + new + newest)
    assert bodies(from_timestamp.inbox.wait_count(6)) == sorted(new + newest)
    assert bodies(from_last.inbox.wait_count(3)) == newest


def test_new_group_on_a_new_topic_starts_at_the_beginning(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    sent = send_all(clients, topic, 3)
    # The broker returns offset 0 while the queue's first messages are in memory, whatever position was requested.
    consumer = clients.push(topic, group=clients.group(), **{"from": "CONSUME_FROM_LAST_OFFSET"})
    assert bodies(consumer.inbox.wait_count(3)) == sent


def known_group(clients: Workbench) -> str:
    group = clients.group()
    clients.mqadmin("updateSubGroup", "-b", clients.broker_address, "-g", group)
    return group
