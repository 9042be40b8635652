"""RocketMQ's pull consumers: responses to pulls, waiting times, and offsets stored by the broker."""

import time

import pytest
from harness.clients import Pulled, Workbench

pytestmark = pytest.mark.core


def test_pull_returns_status_next_offset_and_messages(clients: Workbench) -> None:
    topic = clients.topic(queues=2)
    for i in range(10):
        clients.producer.send(topic, f"{i}", queue_id=0)
    consumer = clients.pull(group=clients.group())

    some = consumer.pull(topic, 0, 3, max_count=4)
    assert (some.status, some.next_begin_offset, some.min_offset, some.max_offset) == ("FOUND", 7, 0, 10)
    assert [m.body for m in some.messages] == [b"3", b"4", b"5", b"6"]
    at_end = consumer.pull(topic, 0, 10)
    assert (at_end.status, at_end.next_begin_offset, at_end.max_offset) == ("NO_NEW_MSG", 10, 10)
    beyond = consumer.pull(topic, 0, 25)
    assert (beyond.status, beyond.next_begin_offset) == ("OFFSET_ILLEGAL", 10)
    never_written = consumer.pull(topic, 1, 0)
    assert (never_written.status, never_written.next_begin_offset, never_written.max_offset) == ("NO_NEW_MSG", 0, 0)


def test_pull_that_skipped_only_other_tags_returns_no_matched_message(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    for _ in range(5):
        clients.producer.send(topic, "other", tags="Other")
    pulled = clients.pull(group=clients.group()).pull(topic, 0, 0, expression="Mine")
    assert (pulled.status, pulled.next_begin_offset, pulled.messages) == ("NO_MATCHED_MSG", 5, [])


def test_pull_returns_at_most_32_messages_and_256_kib(clients: Workbench) -> None:
    topic = clients.topic(queues=2)
    producer = clients.new_producer(compressOver=8 << 20)
    for _ in range(40):
        producer.send(topic, 10, queue_id=0)
    for _ in range(6):
        producer.send(topic, 100_000, queue_id=1)
    consumer = clients.pull(group=clients.group())
    assert len(consumer.pull(topic, 0, 0, max_count=100).messages) == 32
    assert len(consumer.pull(topic, 1, 0, max_count=100).messages) == 2


def test_new_message_wakes_a_held_pull_immediately(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    consumer = clients.pull(group=clients.group())
    clients.producer.send(topic, "warm up")
    consumer.pull(topic, 0, 0)
    waits_ms = []
    for i in range(1, 4):
        waiting = consumer.submit(topic, 0, i, wait=True)
        time.sleep(0.2)
        assert not waiting.done()
        clients.producer.send(topic, f"m{i}")
        pulled = Pulled.from_json(clients.driver.result(waiting))
        assert [m.body.decode() for m in pulled.messages] == [f"m{i}"]
        waits_ms.append(pulled.arrival_timestamp_ms - pulled.messages[0].store_timestamp_ms)
    # A pull that is not woken waits until the broker checks held pulls, every 5 s.
    assert sorted(waits_ms)[0] < 2_000


def test_held_pull_returns_no_message_when_its_time_expires(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    consumer = clients.pull(group=clients.group(), suspendMs=1000)
    clients.producer.send(topic, "one")
    begin_s = time.monotonic()
    pulled = consumer.pull(topic, 0, 1, wait=True)
    waited_s = time.monotonic() - begin_s
    assert (pulled.status, pulled.next_begin_offset) == ("NO_NEW_MSG", 1)
    assert waited_s >= 0.9


def test_message_with_another_tag_does_not_end_a_held_pull(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    consumer = clients.pull(group=clients.group())
    clients.producer.send(topic, "warm up", tags="Mine")
    woken = []
    offset = 1
    for _ in range(3):
        waiting = consumer.submit(topic, 0, offset, wait=True, expression="Mine")
        time.sleep(0.1)
        clients.producer.send(topic, "not for it", tags="Other")
        time.sleep(0.2)
        woken.append(waiting.done())
        clients.producer.send(topic, "for it", tags="Mine")
        pulled = Pulled.from_json(clients.driver.result(waiting))
        if pulled.status == "NO_MATCHED_MSG":
            pulled = consumer.pull(topic, 0, pulled.next_begin_offset, wait=True, expression="Mine")
        assert [m.body for m in pulled.messages] == [b"for it"]
        offset = pulled.next_begin_offset
    # Every 5 s, a broker checks all held pulls and responds to those that it passed over; this affects one at most.
    assert woken.count(True) <= 1


def test_group_offsets_are_stored_on_the_broker(clients: Workbench) -> None:
    topic, group = clients.topic(queues=2), clients.group()
    for i in range(6):
        clients.producer.send(topic, f"{i}", queue_id=1)
    # A push consumer registers the group, and creates the retry topic through which statistics are found.
    clients.stop(clients.push(clients.topic(queues=1), group=group))
    clients.wait_for_route(f"%RETRY%{group}")
    clients.pull(group=group).commit(topic, 1, 4)
    deadline = time.monotonic() + 5
    # The client commits its offset one-way.
    while (offset := clients.pull(group=group).committed(topic, 1)) != 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert offset == 4
    assert clients.admin.consumed(group)[(topic, 1)] == (4, 6)


def test_lite_pull_consumer_polls_seeks_and_commits(clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    for i in range(8):
        clients.producer.send(topic, f"{i}")
    consumer = clients.lite_pull(topic, group=group, assign=[0])
    # Messages of a pull in flight during a seek are delivered nevertheless: wait until no pull returns any.
    assert [m.body for m in consumer.poll_until(8)] == [b"%d" % i for i in range(8)]
    consumer.seek(topic, 0, 5)
    assert [m.body for m in consumer.poll_until(3)] == [b"5", b"6", b"7"]
    consumer.commit()
    assert consumer.committed(topic, 0) == 8
    # The client commits at intervals, and when it stops.
    clients.stop(consumer)
    assert clients.pull(group=group).committed(topic, 0) == 8


def test_subscribed_lite_pull_consumer_receives_only_its_tags(clients: Workbench) -> None:
    topic = clients.topic(queues=4)
    for i in range(12):
        clients.producer.send(topic, f"{i}", tags="Even" if i % 2 == 0 else "Odd")
    options = {"from": "CONSUME_FROM_FIRST_OFFSET"}
    consumer = clients.lite_pull(topic, group=clients.group(), expression="Even", **options)
    assert sorted(int(m.body) for m in consumer.poll_until(6)) == [0, 2, 4, 6, 8, 10]
