"""RocketMQ's producer: every kind of send, and the messages that a consumer receives."""

from typing import Any

import pytest
from harness.clients import Workbench, message

pytestmark = pytest.mark.core


def test_synchronous_send_returns_position_of_the_message(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    first = clients.producer.send(topic, "first")
    second = clients.producer.send(topic, "second")

    assert (first.status, first.topic, first.queue_id, first.queue_offset) == ("SEND_OK", topic, 0, 0)
    assert (second.queue_offset, second.broker_name, second.region_id) == (1, "broker-a", "DefaultRegion")
    # The offset message id starts with the broker's address and ends with a physical offset, which increases.
    assert first.offset_message_id[:16] == second.offset_message_id[:16]
    assert first.offset_message_id[:8] == "7F000001"
    assert int(first.offset_message_id[16:], 16) < int(second.offset_message_id[16:], 16)


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_message_arrives_as_it_was_sent(clients: Workbench, mode: str) -> None:
    topic = clients.topic(queues=2)
    body = "Grüße, 你好 \x00\x01\x02".encode()
    properties = {"colour": "blau", "größe": "12"}
    fields: dict[str, Any] = {"tags": "TagA", "keys": "key1 key2", "flag": 77, "properties": properties, "queue_id": 1}
    if mode == "oneway":
        clients.producer.send_oneway(topic, body, **fields)
    elif mode == "async":
        clients.producer.send_async(topic, body, **fields)
    else:
        clients.producer.send(topic, body, **fields)

    consumer = clients.pull(group=clients.group())
    pulled = consumer.pull(topic, 1, 0, wait=True)
    assert (pulled.status, pulled.next_begin_offset, pulled.min_offset, pulled.max_offset) == ("FOUND", 1, 0, 1)
    (found,) = pulled.messages
    assert (found.topic, found.body, found.tags, found.keys) == (topic, body, "TagA", "key1 key2")
    assert (found.flag, found.queue_id, found.queue_offset, found.reconsume_times) == (77, 1, 0, 0)
    assert properties.items() <= found.properties.items()
    assert found.properties["CLUSTER"] == "DefaultCluster"
    assert "WAIT" not in found.properties
    assert found.born_timestamp_ms <= found.store_timestamp_ms <= pulled.arrival_timestamp_ms


def test_asynchronous_sends_all_arrive_once(clients: Workbench) -> None:
    topic = clients.topic(queues=4)
    futures = [clients.producer.submit(topic, f"m{i}", mode="async") for i in range(200)]
    sent = [clients.driver.result(future) for future in futures]
    places = {(result["queueId"], result["queueOffset"]) for result in sent}
    assert len(places) == 200

    consumer = clients.push(topic, group=clients.group(), **{"from": "CONSUME_FROM_FIRST_OFFSET"})
    messages = consumer.inbox.wait_count(200)
    assert sorted(m.body for m in messages) == sorted(f"m{i}".encode() for i in range(200))


def test_batch_is_one_send_with_many_messages(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    batch = [message(topic, f"m{i}", tags="T", keys=f"batch{i}", properties={"i": str(i)}, flag=i) for i in range(20)]
    sent = clients.producer.send_batch(batch)
    assert (sent.status, sent.queue_offset) == ("SEND_OK", 0)
    offset_ids = sent.offset_message_id.split(",")
    assert len(offset_ids) == len(set(offset_ids)) == 20
    assert len(sent.message_id.split(",")) == 20

    found = clients.pull(group=clients.group()).pull(topic, 0, 0).messages
    assert [(m.body, m.queue_offset, m.flag, m.properties["i"]) for m in found] == [
        (f"m{i}".encode(), i, i, str(i)) for i in range(20)
    ]
    assert clients.admin.view(offset_ids[7]).body == b"m7"


def test_messages_with_one_order_key_share_a_queue_in_order(clients: Workbench) -> None:
    topic = clients.topic(queues=4)
    for i in range(12):
        future = clients.producer.submit(topic, f"{i % 3}:{i}", order_key=f"order-{i % 3}")
        clients.driver.result(future)
    consumer = clients.pull(group=clients.group())
    by_queue = {queue_id: consumer.pull(topic, queue_id, 0).messages for queue_id in range(4)}
    for order in range(3):
        homes = [q for q, found in by_queue.items() if any(m.body.startswith(f"{order}:".encode()) for m in found)]
        assert len(homes) == 1
        bodies = [m.body for m in by_queue[homes[0]] if m.body.startswith(f"{order}:".encode())]
        assert bodies == [f"{order}:{i}".encode() for i in range(order, 12, 3)]


def test_large_body_is_compressed_in_transit_and_complete_on_arrival(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    clients.producer.send(topic, 300_000)
    (found,) = clients.pull(group=clients.group()).pull(topic, 0, 0).messages
    assert found.body == bytes(ord("a") + i % 23 for i in range(300_000))
    assert found.system_flag & 1 == 1
    assert found.store_bytes < 100_000


def test_body_at_the_limit_is_stored_uncompressed(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.new_producer(compressOver=8 << 20, timeoutMs=10_000)
    producer.send(topic, 4 << 20)
    (found,) = clients.pull(group=clients.group()).pull(topic, 0, 0).messages
    assert (len(found.body), found.system_flag & 1) == (4 << 20, 0)


def test_first_send_creates_an_unknown_topic(clients: Workbench) -> None:
    topic = clients.name("AutoCreated")
    sent = clients.producer.send(topic, "first")
    assert sent.status == "SEND_OK"
    clients.wait_for_route(topic, queues=4)
    fresh = clients.new_producer()
    assert fresh.queue_ids(topic) == [0, 1, 2, 3]


def test_fast_port_accepts_sends(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.new_producer(vipChannel=True)
    assert producer.send(topic, "by the fast port").queue_offset == 0
