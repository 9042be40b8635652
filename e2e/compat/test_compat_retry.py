"""Failed messages: sent back, retried through the delay levels, and finally moved to the dead-letter topic."""

import time

import pytest
from harness.clients import Workbench

pytestmark = pytest.mark.core

FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}


def test_failed_message_is_redelivered_later_with_its_count(clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)
    consumer = clients.push(topic, group=group, failTimes=2, **FIRST)
    clients.producer.send(topic, "twice", keys="k", tags="T", properties={"colour": "blue"})
    first, second, third = consumer.inbox.wait_count(3)
    time.sleep(0.5)
    assert len(consumer.inbox.messages()) == 3
    assert [m.reconsume_times for m in (first, second, third)] == [0, 1, 2]
    # Levels 3 and 4: 1 s each in these tests.
    assert second.arrival_timestamp_ms - first.arrival_timestamp_ms >= 1000
    assert third.arrival_timestamp_ms - second.arrival_timestamp_ms >= 1000
    for again in (second, third):
        # The client shows the topic to which the message was first sent.
        assert (again.topic, again.body, again.keys, again.tags) == (topic, b"twice", "k", "T")
        assert (again.message_id, again.properties["colour"]) == (first.message_id, "blue")
        assert again.born_timestamp_ms == first.born_timestamp_ms
        assert again.properties["ORIGIN_MESSAGE_ID"] == first.offset_message_id
        assert again.properties["RETRY_TOPIC"] == topic
        assert again.properties["REAL_TOPIC"] == f"%RETRY%{group}"
    assert [m.properties["DELAY"] for m in (second, third)] == ["3", "4"]


def test_listener_chooses_the_delay_level_of_the_retry(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    consumer = clients.push(topic, group=clients.group(retry_topic=True), failTimes=1, retryLevel=2, **FIRST)
    clients.producer.send(topic, "later")
    first, second = consumer.inbox.wait_count(2)
    assert 2000 <= second.arrival_timestamp_ms - first.arrival_timestamp_ms < 3500
    assert second.properties["DELAY"] == "2"


def test_message_that_always_fails_becomes_a_dead_letter(clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)
    consumer = clients.push(topic, group=group, failTimes=99, maxReconsumeTimes=1, **FIRST)
    sent = clients.producer.send(topic, "hopeless", keys="hope", properties={"colour": "black"})
    consumer.inbox.wait_count(2)

    dead_letters = f"%DLQ%{group}"
    reader = clients.pull(group=clients.group())
    clients.wait_for_route(dead_letters)
    pulled = reader.pull(dead_letters, 0, 0, wait=True)
    (dead,) = pulled.messages
    assert (dead.body, dead.keys, dead.properties["colour"]) == (b"hopeless", "hope", "black")
    assert dead.message_id == sent.message_id
    assert dead.properties["RETRY_TOPIC"] == topic
    assert dead.properties["ORIGIN_MESSAGE_ID"] == sent.offset_message_id
    assert dead.properties["DELAY"] == "0"
    time.sleep(1.5)
    assert len(consumer.inbox.messages()) == 2
    assert reader.pull(dead_letters, 0, 0).max_offset == 1


def test_message_sent_back_with_negative_level_becomes_a_dead_letter_immediately(clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    # A push consumer registers the group.
    clients.stop(clients.push(topic, group=group))
    sent = clients.producer.send(topic, "unwanted")
    consumer = clients.pull(group=group)
    consumer.send_back(topic, 0, sent.queue_offset, delay_level=-1)
    clients.wait_for_route(f"%DLQ%{group}")
    (dead,) = consumer.pull(f"%DLQ%{group}", 0, 0, wait=True).messages
    assert (dead.body, dead.reconsume_times) == (b"unwanted", 1)


def test_other_messages_do_not_wait_for_a_failed_one(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    consumer = clients.push(topic, group=clients.group(retry_topic=True), failTimes=1, retryLevel=5, **FIRST)
    for i in range(5):
        clients.producer.send(topic, f"{i}")
    messages = consumer.inbox.wait_count(10)
    assert [m.reconsume_times for m in messages] == [0] * 5 + [1] * 5
    assert sorted(m.body for m in messages[5:]) == [b"0", b"1", b"2", b"3", b"4"]


def test_only_the_group_that_failed_receives_the_retry(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    failing = clients.push(topic, group=clients.group(retry_topic=True), failTimes=1, **FIRST)
    content = clients.push(topic, group=clients.group(), **FIRST)
    clients.producer.send(topic, "once or twice")
    failing.inbox.wait_count(2)
    time.sleep(0.3)
    assert len(content.inbox.messages()) == 1
