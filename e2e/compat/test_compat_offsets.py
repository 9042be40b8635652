"""Offsets of groups: reset by time, cloned and compared offsets, broadcasting and lite pull, many members."""

import time
from collections import Counter
from typing import Any

import pytest
from harness.clients import PushConsumer, Workbench
from harness.driver import ClientError
from harness.operators import Operators
from harness.raw_member import RawMember

FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}
OFFLINE = 206
RESET_TIMEOUT_S = 60.0
"""A Java member applies a reset 10 s after it receives it."""
COMMIT_TIMEOUT_S = 60.0


@pytest.fixture
def operators(clients: Workbench) -> Operators:
    return Operators(clients)


def wait_committed(clients: Workbench, topic: str, group: str, expected: dict[int, int]) -> None:
    """Wait until the broker has these offsets of the group, by queue id."""
    puller = clients.pull(group=group)
    deadline = time.monotonic() + COMMIT_TIMEOUT_S
    while (found := {queue: puller.committed(topic, queue) for queue in expected}) != expected:
        assert time.monotonic() < deadline, f"consumer offsets: {found}, not {expected}"
        time.sleep(0.05)
    clients.stop(puller)


def consumed(clients: Workbench, topic: str, group: str, *, queues: int, rounds: int) -> PushConsumer:
    """Return a member that has consumed `rounds` messages of each queue and whose offsets the broker has stored."""
    consumer = clients.push(topic, group=group, **FIRST)
    for number in range(rounds):
        for queue_id in range(queues):
            clients.producer.send(topic, f"{queue_id}-{number}", queue_id=queue_id)
    consumer.inbox.wait_count(queues * rounds)
    wait_committed(clients, topic, group, dict.fromkeys(range(queues), rounds))
    return consumer


def test_offset_reset_by_time_takes_effect_in_connected_members(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=2), clients.group()
    consumer = consumed(clients, topic, group, queues=2, rounds=3)
    stored_ms = sorted(m.store_timestamp_ms for m in consumer.inbox.messages())
    assert operators.reset(topic, group, stored_ms[0] - 60_000, force=True) == {0: 0, 1: 0}
    again = consumer.inbox.wait_count(12, timeout_s=RESET_TIMEOUT_S)
    assert Counter(m.body for m in again) == dict.fromkeys((m.body for m in again), 2)
    wait_committed(clients, topic, group, {0: 3, 1: 3})


def test_reset_returns_new_offsets_of_members(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    for number in range(4):
        clients.producer.send(topic, f"{number}")
        time.sleep(0.3)
    messages = clients.pull(group=clients.group()).pull(topic, 0, 0).messages
    stored_ms = [m.store_timestamp_ms for m in messages]
    clients.pull(group=group).commit(topic, 0, 2)
    wait_committed(clients, topic, group, {0: 2})
    raw: dict[str, Any] = {"broker_address": clients.broker_address, "group": group, "topic": topic}
    with RawMember(**raw, client_id="patient", answer=lambda command: None):
        assert operators.reset(topic, group, stored_ms[1], force=False) == {0: 1}
        # Forward only with force.
        assert operators.reset(topic, group, stored_ms[3], force=False) == {0: 2}
        assert operators.reset(topic, group, stored_ms[3], force=True) == {0: 3}
        assert operators.reset(topic, group, -1, force=True) == {0: 4}
        assert operators.reset(topic, group, -1, force=True, cpp=True) == {0: 4}
        # Only members change the broker's offsets.
        wait_committed(clients, topic, group, {0: 2})


def test_reset_of_offline_or_unknown_group_is_rejected(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    consumer = consumed(clients, topic, group, queues=1, rounds=2)
    clients.stop(consumer)
    with pytest.raises(ClientError) as offline:
        operators.reset(topic, group, 1, force=True)
    assert offline.value.code == OFFLINE
    assert offline.value.remark == (
        f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} Timestamp: 1"
    )
    with pytest.raises(ClientError) as unknown:
        operators.reset(topic, "nobody", 1, force=True)
    assert (unknown.value.code, unknown.value.remark) == (1, "THe consumer group <nobody> not exist")


def test_mqadmin_resets_offsets_of_an_offline_group(clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)
    clients.stop(consumed(clients, topic, group, queues=1, rounds=2))
    clients.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "1")
    wait_committed(clients, topic, group, {0: 0})


def test_cloned_offsets_equal_those_of_the_source_group(clients: Workbench, operators: Operators) -> None:
    topic, source, destination = clients.topic(queues=2), clients.group(retry_topic=True), clients.group()
    clients.stop(consumed(clients, topic, source, queues=2, rounds=2))
    operators.clone(source, destination, topic, offline=True)
    wait_committed(clients, topic, destination, {0: 2, 1: 2})
    # The offsets are copied: later commits of one group do not affect the other.
    clients.pull(group=source).commit(topic, 0, 1)
    wait_committed(clients, topic, source, {0: 1, 1: 2})
    wait_committed(clients, topic, destination, {0: 2, 1: 2})


def test_lowest_offset_of_all_groups_is_returned(clients: Workbench, operators: Operators) -> None:
    topic = clients.topic(queues=2)
    for queue_id in range(2):
        for number in range(5):
            clients.producer.send(topic, f"{number}", queue_id=queue_id)
    ahead, behind = clients.group(), clients.group()
    for group, offsets in ((ahead, {0: 5, 1: 2}), (behind, {0: 3, 1: 4})):
        puller = clients.pull(group=group)
        for queue_id, offset in offsets.items():
            puller.commit(topic, queue_id, offset)
        wait_committed(clients, topic, group, offsets)
    assert operators.corrections(topic, ahead) == {0: 3, 1: 2}
    assert operators.corrections(topic, ahead, left_out=[behind]) == {0: 5, 1: 2}


def test_broadcasting_members_store_no_offsets_on_the_broker(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=2), clients.group(retry_topic=True)
    members = [clients.push(topic, group=group, broadcasting=True, **FIRST) for _ in range(2)]
    for number in range(4):
        clients.producer.send(topic, f"{number}", queue_id=number % 2)
    for member in members:
        member.inbox.wait_count(4)
    time.sleep(1.0)
    with pytest.raises(ClientError) as no_offsets:
        clients.admin.consumed(group)
    assert no_offsets.value.code == OFFLINE
    status = operators.status(topic, group)
    assert status == {member.client_id: {0: 2, 1: 2} for member in members}


def test_lite_pull_consumers_share_queues_and_resume_at_committed_offsets(clients: Workbench) -> None:
    topic, group = clients.topic(queues=4), clients.group()
    for number in range(8):
        clients.producer.send(topic, f"{number}", queue_id=number % 4)
    first = clients.lite_pull(topic, group=group, **FIRST)
    assert sorted(int(m.body) for m in first.poll_until(8, timeout_s=60)) == list(range(8))
    first.commit()
    clients.stop(first)
    wait_committed(clients, topic, group, dict.fromkeys(range(4), 2))
    for number in range(8, 12):
        clients.producer.send(topic, f"{number}", queue_id=number % 4)
    second = clients.lite_pull(topic, group=group, **FIRST)
    assert sorted(int(m.body) for m in second.poll_until(4, timeout_s=60)) == list(range(8, 12))


def test_many_members_of_a_group_receive_each_message_once(clients: Workbench) -> None:
    topic, group = clients.topic(queues=24), clients.group()
    members = [clients.push(topic, group=group, threads=1, **FIRST) for _ in range(12)]
    assert clients.admin.consumers(group) == sorted(member.client_id for member in members)
    deadline = time.monotonic() + 60
    turn = 0
    while True:
        for queue_id in range(24):
            clients.producer.send(topic, f"{turn}-{queue_id}", queue_id=queue_id)
        seen = _round_of(members, turn, deadline)
        assert sum(seen) >= 24
        if seen == [2] * 12:
            return
        assert time.monotonic() < deadline, f"the members never shared the queues evenly, but as {seen}"
        turn += 1


def _round_of(members: list[PushConsumer], turn: int, deadline: float) -> list[int]:
    """Return the number of messages of a round that each member received, once all have arrived."""
    prefix = f"{turn}-".encode()
    while True:
        seen = [sum(m.body.startswith(prefix) for m in member.inbox.messages()) for member in members]
        if sum(seen) >= 24:
            return seen
        assert time.monotonic() < deadline, f"only these messages of round {turn} arrived: {seen}"
        time.sleep(0.05)
