"""Timed messages of RocketMQ's clients 4.9 and 5.3: never early, exactly once, and at most a second late."""

import base64
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from compat.timed_sends import (
    COMMIT,
    HOUR_MS,
    LATE_LIMIT_MS,
    MESSAGE_ILLEGAL,
    NOT_DONE,
    SUCCESS,
    Expected,
    act,
    now_ms,
)
from harness.brokers import BROKER_NAME
from harness.clients import Sent, Workbench, message
from harness.driver import ClientError

# RocketMQ 4.9's broker has no due times but those of levels.
pytestmark = pytest.mark.ours_only

DELAYS_MS = (1, 250, 999, 1000, 2345)
PAST_MS = 5000
QUEUES = 4
TEN_YEARS_S = 10 * 366 * 86_400
"""Above the default limit, whichever way it counts leap years."""


def send_in_every_way(expected: Expected) -> None:
    """Send messages with each of the three properties and delays, to all queues."""
    for number, delay_ms in enumerate(DELAYS_MS):
        fields: dict[str, Any] = {
            "queue_id": number % QUEUES,
            "tags": "Timed",
            "properties": {"queue": str(number % QUEUES)},
        }
        due = now_ms() + delay_ms
        # The broker may receive a message after its due time; it is then stored in its topic immediately.
        if delay_ms >= 250:
            expected.send(f"at {delay_ms}", due, deliverTimeMs=due, **fields)
        expected.send(f"after {delay_ms}", delay=delay_ms, delayTimeMs=delay_ms, **fields)
    whole_second = (now_ms() // 1000 + 2) * 1000
    expected.send("whole second", whole_second, queue_id=0, tags="Timed", deliverTimeMs=whole_second)
    expected.send("seconds", delay=2000, queue_id=1, tags="Timed", delayTimeSec=2)


def check_every_way(clients: Workbench) -> None:
    topic = clients.topic(queues=QUEUES)
    consumer = clients.push(topic, group=clients.group(), expression="Timed")
    expected = Expected(clients, topic)
    send_in_every_way(expected)
    expected.check(consumer)
    for m in consumer.inbox.messages():
        assert m.tags == "Timed"
        assert m.properties["REAL_QID"] == str(m.queue_id) == m.properties.get("queue", str(m.queue_id))


@pytest.mark.core
def test_timed_messages_of_the_4_9_client_arrive_once_and_never_early(clients: Workbench) -> None:
    check_every_way(clients)


def test_timed_messages_of_the_5_3_client_arrive_once_and_never_early(clients5: Workbench) -> None:
    check_every_way(clients5)


def test_past_times_are_delivered_immediately(clients: Workbench, either: Workbench) -> None:
    topic = either.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    begin = now_ms()
    sent = [
        either.producer.send(topic, "past", deliverTimeMs=begin - PAST_MS),
        either.producer.send(topic, "epoch", deliverTimeMs=0),
        either.producer.send(topic, "no delay", delayTimeMs=0),
    ]
    assert [each.queue_offset for each in sent] == [0, 1, 2]
    assert [each.recall_handle for each in sent] == [None] * 3
    messages = consumer.inbox.wait_count(3)
    assert {m.body: m.queue_offset for m in messages} == {b"past": 0, b"epoch": 1, b"no delay": 2}
    assert all(m.store_timestamp_ms <= begin + LATE_LIMIT_MS for m in messages)
    assert all("TIMER_OUT_MS" not in m.properties and "REAL_TOPIC" not in m.properties for m in messages)


def test_received_message_that_is_sent_again_is_not_delayed_again(clients: Workbench, either: Workbench) -> None:
    topic = either.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    either.producer.send(topic, "first", deliverTimeMs=now_ms() + 500)
    (first,) = consumer.inbox.wait_count(1)
    timers = {name: text for name, text in first.properties.items() if name.startswith("TIMER_")}
    timers["TIMER_DELIVER_MS"] = str(now_ms() + HOUR_MS)
    assert "TIMER_OUT_MS" in timers
    assert either.producer.send(topic, "again", reservedProperties=timers).queue_offset == 1
    again = consumer.inbox.wait_count(2)[1]
    assert "TIMER_OUT_MS" not in again.properties


def test_seconds_precede_milliseconds_and_absolute_times(clients: Workbench, either: Workbench) -> None:
    topic = either.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    expected = Expected(either, topic)
    far = now_ms() + HOUR_MS
    expected.send("s", delay=1000, delayTimeSec=1, delayTimeMs=HOUR_MS, deliverTimeMs=far)
    expected.send("ms", delay=700, delayTimeMs=700, deliverTimeMs=far)
    expected.check(consumer)


def test_level_precedes_due_times(clients: Workbench, either: Workbench) -> None:
    topic = either.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    begin = now_ms()
    either.producer.send(topic, "level", delayLevel=1, delayTimeSec=3600, deliverTimeMs=begin + HOUR_MS)
    (m,) = consumer.inbox.wait_count(1)
    assert m.store_timestamp_ms - begin >= 1000
    assert m.properties["DELAY"] == "1"
    assert "TIMER_OUT_MS" not in m.properties


def test_start_deliver_time_is_a_due_time(clients: Workbench, either: Workbench) -> None:
    topic = either.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    expected = Expected(either, topic)
    due = now_ms() + 600
    expected.send("start", due, reservedProperties={"__STARTDELIVERTIME": str(due)})
    expected.check(consumer)


def test_each_message_of_a_batch_has_its_own_time(clients: Workbench, either: Workbench) -> None:
    topic = either.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    expected = Expected(either, topic)
    due = {f"batch {number}": now_ms() + 2000 - 400 * number for number in range(4)}
    either.producer.send_batch([message(topic, body, deliverTimeMs=at) for body, at in due.items()])
    expected.due = {body: (at, at) for body, at in due.items()}
    expected.check(consumer)


def test_batch_may_mix_timed_and_other_messages(clients: Workbench, either: Workbench) -> None:
    topic = either.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    either.producer.send_batch([message(topic, "timed", delayTimeMs=600), message(topic, "now")])
    # A consumer that pulls both in one response passes them to its threads in any order.
    messages = sorted(consumer.inbox.wait_count(2), key=lambda m: m.queue_offset)
    assert [m.body for m in messages] == [b"now", b"timed"]
    # The due time is set when the batch arrives, which may be a millisecond before its first record is stored.
    assert messages[1].store_timestamp_ms - messages[1].born_timestamp_ms >= 600


def test_relative_delay_in_a_transaction_counts_from_the_commit(clients: Workbench, either: Workbench) -> None:
    topic = either.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    producer = either.transactions()
    expected = Expected(either, topic)
    at = now_ms() + 2000
    halves = {
        "relative": producer.prepare(topic, "relative", delayTimeMs=800),
        "absolute": producer.prepare(topic, "absolute", deliverTimeMs=at),
    }
    time.sleep(1.2)
    assert consumer.inbox.messages() == []
    for body, half in halves.items():
        begin = now_ms()
        assert producer.end(half, COMMIT, broker=either.broker_address) == (SUCCESS, None)
        expected.due[body] = (begin + 800, now_ms() + 800) if body == "relative" else (at, at)
    begin = now_ms()
    producer.send(topic, "committed by the client", "C", delayTimeMs=500)
    # The client commits with a one-way request after its response.
    expected.due["committed by the client"] = (begin + 500, now_ms() + 500 + LATE_LIMIT_MS)
    producer.send(topic, "rolled back", "R", delayTimeMs=100)
    expected.check(consumer)


def test_transaction_with_a_passed_due_time_is_delivered_by_its_commit(clients: Workbench, either: Workbench) -> None:
    topic = either.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    producer = either.transactions()
    half = producer.prepare(topic, "late", deliverTimeMs=now_ms() + 300)
    time.sleep(0.6)
    assert consumer.inbox.messages() == []
    begin = now_ms()
    assert producer.end(half, COMMIT, broker=either.broker_address) == (SUCCESS, None)
    (m,) = consumer.inbox.wait_count(1)
    assert begin <= m.store_timestamp_ms <= begin + LATE_LIMIT_MS


INVALID: dict[str, dict[str, Any]] = {
    "no number": {"reservedProperties": {"TIMER_DELIVER_MS": "soon"}},
    "fraction": {"reservedProperties": {"TIMER_DELAY_SEC": "1.5"}},
    "too many digits": {"reservedProperties": {"TIMER_DELAY_MS": "9" * 30}},
    "overflow": {"reservedProperties": {"TIMER_DELAY_SEC": str(2**63 - 1)}},
    "negative": {"delayTimeMs": -1},
    "negative time": {"deliverTimeMs": -1},
    "above the limit": {"delayTimeSec": TEN_YEARS_S},
    "two schedules": {"delayTimeMs": 500, "reservedProperties": {"__STARTDELIVERTIME": "1"}},
}


def test_invalid_times_are_rejected_with_a_reason_and_nothing_is_stored(either: Workbench) -> None:
    topic = either.topic(queues=1)
    producer, transactions = either.producer, either.transactions()
    before = producer.send(topic, "before", delayTimeSec=TEN_YEARS_S // 2)
    for name, fields in INVALID.items():
        sends: list[Callable[[], Sent]] = [
            partial(producer.send, topic, name, **fields),
            partial(producer.send_batch, [message(topic, "valid"), message(topic, name, **fields)]),
            partial(transactions.prepare, topic, name, **fields),
        ]
        for send in sends:
            with pytest.raises(ClientError) as rejected:
                send()
            assert rejected.value.code == MESSAGE_ILLEGAL, name
            assert " " in rejected.value.remark
            assert "Exception" not in rejected.value.remark
    after = producer.send(topic, "after", delayTimeSec=TEN_YEARS_S // 2)
    # Both offsets are those of the timer topic.
    assert after.queue_offset == before.queue_offset + 1
    assert producer.send(topic, "first of its queue").queue_offset == 0


def test_recall_handle_names_topic_broker_due_time_and_unique_id(clients5: Workbench) -> None:
    topic = clients5.topic(queues=1)
    due = now_ms() + 3_600_123
    sent = clients5.producer.send(topic, "recallable", deliverTimeMs=due)
    text = f"v1 {topic} {BROKER_NAME} {due} {sent.message_id}"
    assert sent.recall_handle == base64.urlsafe_b64encode(text.encode()).decode()
    assert clients5.producer.send(topic, "now").recall_handle is None
    assert clients5.producer.send(topic, "level", delayLevel=1).recall_handle is None
    assert clients5.transactions().prepare(topic, "half", deliverTimeMs=due).recall_handle is None


def test_5_3_client_recalls_a_pending_message_and_learns_what_happened_to_others(clients5: Workbench) -> None:
    topic, producer = clients5.topic(queues=1), clients5.producer
    consumer = clients5.push(topic, group=clients5.group())
    pending = producer.send(topic, "recalled", deliverTimeMs=now_ms() + 2_000)
    moved = producer.send(topic, "moved", deliverTimeMs=now_ms() + 2_000, properties={"DELAY_KEY": "moved"})
    early = producer.send(topic, "early", deliverTimeMs=now_ms() + 300)
    assert pending.recall_handle
    assert moved.recall_handle
    assert early.recall_handle
    act(producer, topic, "move", "moved", delayTimeMs=HOUR_MS)
    assert producer.recall(topic, pending.recall_handle) == pending.message_id
    assert producer.recall(topic, moved.recall_handle) == moved.message_id
    consumer.inbox.wait_count(1)
    for handle, reason in (
        (early.recall_handle, f"the message was delivered to topic {topic} at 20"),
        (base64.urlsafe_b64encode(f"v1 {topic} {BROKER_NAME} 1 never".encode()).decode(), "no pending message"),
    ):
        with pytest.raises(ClientError, match=reason) as refused:
            producer.recall(topic, handle)
        assert refused.value.code == NOT_DONE
    time.sleep(2.5)
    assert [m.body for m in consumer.inbox.messages()] == [b"early"]


@pytest.mark.core
def test_4_9_client_changes_pending_messages_by_messages_with_actions(clients: Workbench) -> None:
    topic, producer = clients.topic(queues=1), clients.producer
    consumer = clients.push(topic, group=clients.group())
    due = now_ms() + HOUR_MS
    for body in ("first", "cancelled", "fired", "moved", "touched"):
        producer.send(topic, body, deliverTimeMs=due, properties={"DELAY_KEY": body})
    producer.send(topic, "second", delayTimeMs=300, properties={"DELAY_KEY": "first"})
    key = {"DELAY_KEY": "moved"}
    kept = producer.send(topic, "kept", deliverTimeMs=due, properties={**key, "DELAY_ON_SAME_KEY": "keep"})
    assert kept.status == "SEND_OK"
    with pytest.raises(ClientError, match="a message with DELAY_KEY 'moved' is pending") as refused:
        producer.send(topic, "no", deliverTimeMs=due, properties={**key, "DELAY_ON_SAME_KEY": "refuse"})
    assert refused.value.code == NOT_DONE
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("cancel", "cancelled", {}), ("fire", "fired", {}), ("move", "moved", {"delayTimeMs": 500}),
        ("move", "touched", {"deliverTimeMs": due + 1}), ("touch", "touched", {}),
    ]  # fmt: skip
    for action, name, fields in changes:
        assert act(producer, topic, action, name, **fields).status == "SEND_OK"
    received = [m.body.decode() for m in consumer.inbox.wait_count(3)]
    assert sorted(received) == ["fired", "moved", "second"]
    with pytest.raises(ClientError, match="the message was delivered") as late:
        act(producer, topic, "cancel", "fired")
    assert late.value.code == NOT_DONE
    time.sleep(0.5)
    assert len(consumer.inbox.messages()) == 3


def test_message_with_a_delay_level_is_cancelled_and_moved_by_its_unique_id(either: Workbench) -> None:
    topic, producer = either.topic(queues=1), either.producer
    cancelled, moved = (producer.send(topic, body, delayLevel=16) for body in ("cancelled", "moved"))
    for action, sent, fields in (("cancel", cancelled, {}), ("move", moved, {"delayTimeMs": 200})):
        key = {"TIMER_DEL_UNIQKEY": sent.message_id}  # the client of 5.3 sets it only itself
        producer.send(topic, "x", properties={"DELAY_ACTION": action}, reservedProperties=key, **fields)
    deadline = time.monotonic() + 10
    while not (stored := either.admin.offsets(topic, 0)["max"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert stored == 1
