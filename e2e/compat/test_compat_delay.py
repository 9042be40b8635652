"""Delayed messages with RocketMQ's client: never early, exactly once, and unchanged."""

import time

import pytest
from harness.clients import Workbench

pytestmark = pytest.mark.core

DELAY_MS = {1: 1000, 2: 2000, 5: 3000}
"""Levels of conftest.DELAY_LEVELS and their delays."""
LATE_LIMIT_MS = 1500
"""RocketMQ's broker checks for due messages ten times per second; the rest is for a busy machine."""


def test_delayed_messages_arrive_once_never_early_in_their_own_topic_and_queue(clients: Workbench) -> None:
    topic, group = clients.topic(queues=4), clients.group()
    consumer = clients.push(topic, group=group)
    sent_at_ms: dict[str, int] = {}
    for level in DELAY_MS:
        for queue_id in range(4):
            body = f"{level}:{queue_id}"
            sent_at_ms[body] = int(time.time() * 1000)
            fields = {"delayLevel": level, "tags": "Late", "keys": body, "properties": {"level": str(level)}}
            clients.producer.send(topic, body, queue_id=queue_id, **fields)
    consumer.inbox.wait_count(len(sent_at_ms))
    # A duplicate would arrive soon afterwards.
    time.sleep(1)
    messages = consumer.inbox.messages()
    assert sorted(m.body.decode() for m in messages) == sorted(sent_at_ms)
    for m in messages:
        level_text, queue_text = m.body.decode().split(":")
        delay_ms = DELAY_MS[int(level_text)]
        assert delay_ms <= m.arrival_timestamp_ms - sent_at_ms[m.body.decode()] <= delay_ms + LATE_LIMIT_MS
        assert m.store_timestamp_ms - m.born_timestamp_ms >= delay_ms
        assert (m.topic, m.queue_id, m.tags, m.keys) == (topic, int(queue_text), "Late", m.body.decode())
        assert (m.properties["level"], m.properties["DELAY"]) == (level_text, level_text)
        assert (m.properties["REAL_TOPIC"], m.properties["REAL_QID"]) == (topic, queue_text)
        assert m.reconsume_times == 0


def test_delayed_send_returns_its_position_in_the_schedule_topic(clients: Workbench) -> None:
    topic = clients.topic(queues=4)
    sent = [clients.producer.send(topic, f"m{i}", queue_id=3, delayLevel=8) for i in range(3)]
    offsets = [s.queue_offset for s in sent]
    assert offsets == list(range(offsets[0], offsets[0] + 3))
    # Level 8 has queue 7 in this topic.
    waiting = clients.admin.view(sent[0].offset_message_id)
    assert (waiting.topic, waiting.queue_id, waiting.queue_offset) == ("SCHEDULE_TOPIC_XXXX", 7, offsets[0])
    assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == (topic, "3")


def test_messages_of_one_level_and_queue_keep_their_order(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    for i in range(50):
        clients.producer.send(topic, f"{i}", delayLevel=1)
    consumer = clients.lite_pull(topic, group=clients.group(), assign=[0])
    consumer.seek(topic, 0, 0)
    assert [m.body for m in consumer.poll_until(50)] == [f"{i}".encode() for i in range(50)]


def test_short_delay_does_not_wait_for_an_earlier_longer_one(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    clients.producer.send(topic, "long", delayLevel=5)
    clients.producer.send(topic, "short", delayLevel=1)
    clients.producer.send(topic, "now")
    # Threads of the consumer handle messages of one response in any order.
    messages = sorted(consumer.inbox.wait_count(3), key=lambda m: m.queue_offset)
    assert [m.body for m in messages] == [b"now", b"short", b"long"]


def test_level_above_the_highest_is_clamped_to_it(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    sent = clients.producer.send(topic, "far", delayLevel=99)
    waiting = clients.admin.view(sent.offset_message_id)
    assert (waiting.topic, waiting.queue_id, waiting.properties["DELAY"]) == ("SCHEDULE_TOPIC_XXXX", 7, "8")


@pytest.mark.parametrize("size", [1, 200_000])
def test_delayed_body_of_any_size_arrives_complete(clients: Workbench, size: int) -> None:
    topic = clients.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    clients.producer.send(topic, size, delayLevel=1)
    (got,) = consumer.inbox.wait_count(1)
    assert got.body == bytes(ord("a") + i % 23 for i in range(size))


def test_async_and_oneway_sends_are_delayed(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    begin_ms = int(time.time() * 1000)
    clients.producer.send_async(topic, "async", delayLevel=1)
    clients.producer.send_oneway(topic, "oneway", delayLevel=1)
    messages = consumer.inbox.wait_count(2)
    assert {m.body for m in messages} == {b"async", b"oneway"}
    assert all(m.arrival_timestamp_ms - begin_ms >= 1000 for m in messages)
