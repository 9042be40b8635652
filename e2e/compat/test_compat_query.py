"""Queries for messages and offsets: by ID, by key, by time."""

import time

import pytest
from harness.clients import Workbench
from harness.driver import ClientError
from harness.operators import Operators
from harness.waiting import until

pytestmark = pytest.mark.core


def test_message_is_found_by_its_offset_message_id_and_by_its_unique_id(clients: Workbench) -> None:
    topic = clients.topic(queues=2)
    sent = clients.producer.send(topic, "here", queue_id=1, keys="k1", tags="T", properties={"colour": "red"})
    by_offset = clients.admin.view(sent.offset_message_id)
    by_unique_id = clients.admin.view(sent.message_id, topic=topic)
    for found in (by_offset, by_unique_id):
        assert (found.topic, found.queue_id, found.queue_offset, found.body) == (topic, 1, 0, b"here")
        assert (found.keys, found.tags, found.properties["colour"]) == ("k1", "T", "red")
        assert found.message_id == sent.message_id


def test_message_is_found_by_any_of_its_keys(clients: Workbench) -> None:
    topic, other_topic = clients.topic(queues=2), clients.topic(queues=1)
    clients.producer.send(topic, "one", keys="shared only-one")
    clients.producer.send(topic, "two", keys="shared")
    clients.producer.send(other_topic, "elsewhere", keys="shared")
    assert {m.body for m in clients.admin.query(topic, "shared")} == {b"one", b"two"}
    assert {m.body for m in clients.admin.query(topic, "only-one")} == {b"one"}
    assert {m.body for m in clients.admin.query(other_topic, "shared")} == {b"elsewhere"}
    assert len(clients.admin.query(topic, "shared", max_count=1)) == 1


def test_keys_that_share_only_a_hash_code_are_not_found(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    clients.producer.send(topic, "BB", keys="BB")
    clients.producer.send(topic, "Aa", keys="Aa")
    # RocketMQ's broker indexes keys after the response to the send.
    found = until(lambda: clients.admin.query(topic, "Aa"), "the key")
    assert [m.body for m in found] == [b"Aa"]


def test_each_message_of_a_batch_is_found_by_its_key(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    from_batch = [{"topic": topic, "body": "", "bodySize": 10 + i, "keys": f"b{i}"} for i in range(5)]
    clients.producer.send_batch(from_batch)
    assert [len(m.body) for m in clients.admin.query(topic, "b3")] == [13]


def test_delayed_message_is_found_by_its_key_after_delivery(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    consumer = clients.push(topic, group=clients.group())
    sent = clients.producer.send(topic, "later", delayLevel=1, keys="late-key")
    with pytest.raises(ClientError) as no_message:
        clients.admin.query(topic, "late-key")
    assert no_message.value.code == 208
    consumer.inbox.wait_count(1)
    (found,) = clients.admin.query(topic, "late-key")
    assert (found.topic, found.body, found.message_id) == (topic, b"later", sent.message_id)


def test_queue_offsets_are_found_by_end_and_by_time(clients: Workbench) -> None:
    topic = clients.topic(queues=2)
    for i in range(3):
        clients.producer.send(topic, f"early{i}", queue_id=0)
    time.sleep(0.3)
    middle_ms = int(time.time() * 1000)
    time.sleep(0.3)
    for i in range(3):
        clients.producer.send(topic, f"late{i}", queue_id=0)
    messages = clients.pull(group=clients.group()).pull(topic, 0, 0).messages
    times_ms = [m.store_timestamp_ms for m in messages]

    offsets = clients.admin.offsets(topic, 0)
    assert (offsets["min"], offsets["max"], offsets["earliestStoreTimestamp"]) == (0, 6, times_ms[0])
    assert clients.admin.search_offset(topic, 0, times_ms[0] - 60_000) == 0
    assert clients.admin.search_offset(topic, 0, times_ms[4]) in {3, 4, 5}
    # Between two messages: the nearer one.
    assert clients.admin.search_offset(topic, 0, middle_ms - 250) == 2
    assert clients.admin.search_offset(topic, 0, middle_ms + 250) == 3
    assert clients.admin.search_offset(topic, 0, times_ms[5] + 60_000) in {5, 6}


def test_empty_queue_has_no_offsets(clients: Workbench) -> None:
    topic = clients.topic(queues=2)
    assert clients.admin.offsets(topic, 1) == {"min": 0, "max": 0, "earliestStoreTimestamp": -1}
    assert clients.admin.search_offset(topic, 1, int(time.time() * 1000)) == 0


def test_topic_created_by_client_has_requested_number_of_queues(clients: Workbench) -> None:
    topic = clients.name("Created")
    clients.admin.create_topic(topic, key="TBW102", queues=3)
    clients.wait_for_route(topic, queues=3)
    assert clients.producer.queue_ids(topic) == [0, 1, 2]


def test_consume_queue_query_returns_entries_and_subscription_of_a_group(clients: Workbench) -> None:
    operators = Operators(clients)
    topic, group = clients.topic(queues=2), clients.group()
    sent = [clients.producer.send(topic, f"{i}", queue_id=1, tags="TagA") for i in range(4)]
    clients.push(topic, group=group, expression="TagA || TagB")
    looked = operators.consume_queue(topic, 1, index=1, count=2, group=group)
    assert (looked["min"], looked["max"], looked["expression"]) == (0, 4, "TagA || TagB")
    assert [entry["offset"] for entry in looked["entries"]] == [
        int(each.offset_message_id[-16:], 16) for each in sent[1:3]
    ]
    assert [entry["tagsCode"] for entry in looked["entries"]] == [2598919, 2598919]
    assert looked["filterData"] == "null"
    offline = operators.consume_queue(topic, 1, group="nobody")
    assert (offline["filterData"], offline["expression"]) == (f"nobody@{topic} is not online!", None)
    assert len(offline["entries"]) == 4
    with pytest.raises(ClientError) as no_queue:
        operators.consume_queue("NobodyKnows", 0)
    assert no_queue.value.code == 1


def test_consume_time_span_of_a_group_is_returned(clients: Workbench) -> None:
    operators = Operators(clients)
    topic, group = clients.topic(queues=2), clients.group()
    for i in range(3):
        clients.producer.send(topic, f"{i}", queue_id=0)
        time.sleep(0.05)
    puller = clients.pull(group=group)
    stored_ms = [m.store_timestamp_ms for m in puller.pull(topic, 0, 0).messages]
    puller.commit(topic, 0, 2)
    deadline = time.monotonic() + 60
    while puller.committed(topic, 0) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    spans = operators.time_spans(topic, group)
    span = spans[0]
    assert (span["min"], span["max"], span["consumed"]) == (stored_ms[0], stored_ms[2], stored_ms[1])
    assert span["delay"] >= 0
    assert (spans[1]["min"], spans[1]["max"], spans[1]["consumed"]) == (-1, -1, -1)
    with pytest.raises(ClientError) as unknown:
        operators.time_spans("NobodyKnows", group)
    assert unknown.value.code == 17
