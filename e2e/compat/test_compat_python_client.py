"""The Python client with either broker: messages arrive exactly once, and complete."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from compat.python_scenario import (
    HELD_MS,
    POLL_S,
    Collected,
    NewCluster,
    new_name,
    run,
    settled,
    subscribed,
    until,
)
from delaymq.client import (
    Admin,
    Client,
    Message,
    NoSuchDelayError,
    Producer,
    PullConsumer,
    PullStatus,
    ReceivedMessage,
    SendStatus,
)
from delaymq.client.due_times import due_in_ms
from harness.brokers import Cluster


def test_message_arrives_with_tags_keys_and_properties(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=2)
        got = Collected()
        consumer = subscribed(client, group, topic, got)
        async with consumer, Producer(client) as producer:
            text, more = "größer", {"color": "grün"}
            result = await producer.send(
                Message(topic=topic, body=text.encode(), tags="TagA", keys=("k1", "k2"), properties=more, flag=7)
            )
            await until(lambda: bool(got.messages))
        [received] = got.messages
        assert result.status is SendStatus.OK
        assert received.body == "größer".encode()
        assert (received.topic, received.tags, received.keys, received.flag) == (topic, "TagA", ("k1", "k2"), 7)
        assert received.properties["color"] == "grün"
        assert received.message_id == result.message_id
        assert received.offset_message_id == result.offset_message_id
        assert (received.queue, received.queue_offset) == (result.queue, result.queue_offset)

    run(cluster, scenario)


def test_delays_are_never_early(cluster: Cluster, against: str) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        got = Collected()
        await Admin(client).create_topic(topic, queues=1)
        consumer = subscribed(client, group, topic, got)
        async with consumer, Producer(client) as producer:
            for delay in ("3s", "2s", "1s"):
                await producer.send(Message(topic=topic, body=delay.encode()), delay=delay)
            await until(lambda: len(got.messages) == 3)
        assert got.bodies == [b"1s", b"2s", b"3s"]
        if against == "real":
            assert [message.delay_level for message in got.messages] == [1, 2, 5]
        else:
            assert all(message.due_ms is not None for message in got.messages)
        for message, delay_ms in zip(got.messages, (1000, 2000, 3000), strict=True):
            late_ms = message.store_timestamp_ms - message.born_timestamp_ms - delay_ms
            assert 0 <= late_ms < 30_000

    run(cluster, scenario)


def test_delay_without_a_level_requires_timed_messages(cluster: Cluster, against: str) -> None:
    topic = new_name("Topic")
    table = r"no delay level of exactly 7s; its levels are: 1s 2s 1s 1s 3s 4s 10s 1h"

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        async with Producer(client) as producer:
            seven = Message(topic=topic, body=b"x", delay="7s")
            due = Message(topic=topic, body=b"x", at=datetime.now(UTC) + timedelta(hours=1))
            for message, why in ((seven, table), (due, "does not support timed messages, which due times")):
                if against == "real":
                    with pytest.raises(NoSuchDelayError, match=why):
                        await producer.send(message)
                else:
                    assert (await producer.send(message)).recall_handle is not None
        stats = await Admin(client).topic_stats(topic)
        assert [each.max_offset for each in stats.values()] == [0]

    run(cluster, scenario)


@pytest.mark.ours_only
def test_messages_of_a_batch_are_delivered_at_their_own_times(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        got = Collected()
        await Admin(client).create_topic(topic, queues=1)
        at = datetime.now(UTC) + timedelta(seconds=3)
        consumer = subscribed(client, group, topic, got)
        async with consumer, Producer(client) as producer:
            later, after = Message(topic=topic, body=b"at", at=at), Message(topic=topic, body=b"after", delay="1500ms")
            await producer.send_batch([later, after, Message(topic=topic, body=b"now")])
            await until(lambda: len(got.messages) == 3)
        assert got.bodies == [b"now", b"after", b"at"]
        now, delayed, due = got.messages
        assert now.due_ms is None
        assert due.due_ms == due_in_ms(at)
        for message in (delayed, due):
            assert message.due_ms is not None
            assert 0 <= message.store_timestamp_ms - message.due_ms < 30_000

    run(cluster, scenario)


def test_large_body_is_sent_compressed_and_arrives_complete(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        got = Collected()
        await Admin(client).create_topic(topic, queues=1)
        consumer = subscribed(client, group, topic, got)
        body = bytes(range(256)) * 200
        async with consumer, Producer(client) as producer:
            await producer.send(Message(topic=topic, body=body))
            await until(lambda: bool(got.messages))
        assert got.bodies == [body]
        assert got.messages[0].sys_flag & 1

    run(cluster, scenario)


def test_batch_is_stored_in_order_in_one_queue(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=4)
        async with Producer(client) as producer, PullConsumer(client, new_name("Group")) as consumer:
            batch = [Message(topic=topic, body=b"%d" % number, tags="Even") for number in range(10)]
            result = await producer.send_batch(batch)
            pulled: list[ReceivedMessage] = []
            while len(pulled) < 10:
                offset = result.queue_offset + len(pulled)
                pulled += (await consumer.pull(result.queue, offset, suspend_ms=HELD_MS)).messages
        assert [message.body for message in pulled] == [b"%d" % number for number in range(10)]
        assert ",".join(message.message_id for message in pulled) == result.message_id
        assert ",".join(message.offset_message_id for message in pulled) == result.offset_message_id

    run(cluster, scenario)


def test_one_way_sends_arrive(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        got = Collected()
        await Admin(client).create_topic(topic, queues=2)
        consumer = subscribed(client, group, topic, got)
        async with consumer, Producer(client) as producer:
            ids = [await producer.send_oneway(Message(topic=topic, body=b"x")) for _ in range(20)]
            await until(lambda: len(got.messages) == 20)
        assert sorted(message.message_id for message in got.messages) == sorted(ids)

    run(cluster, scenario)


def test_first_send_creates_the_topic(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        async with Producer(client) as producer:
            result = await producer.send(Message(topic=topic, body=b"first"))
            assert result.status is SendStatus.OK
            assert len({queue.queue_id for queue in await producer.queues(topic)}) == 4
        # Brokers register new topics with the NameServer asynchronously.
        while not await Admin(client).topic_exists(topic):  # noqa: ASYNC110 - at the NameServer
            await asyncio.sleep(POLL_S)

    run(cluster, scenario)


def test_pull_returns_status_and_waits_for_messages_on_request(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        async with Producer(client) as producer, PullConsumer(client, group) as consumer:
            [queue] = await consumer.queues(topic)
            await producer.send(Message(topic=topic, body=b"1", tags="A"))
            found = await consumer.pull(queue, 0, suspend_ms=HELD_MS)  # the real broker shows it a moment later
            assert (found.status, found.next_offset, found.max_offset) == (PullStatus.FOUND, 1, 1)
            assert (await consumer.pull(queue, 0, tags="B")).status is PullStatus.NOTHING_MATCHED
            assert (await consumer.pull(queue, 1)).status is PullStatus.NOTHING_NEW
            beyond = await consumer.pull(queue, 99)
            assert (beyond.status, beyond.next_offset) == (PullStatus.ILLEGAL_OFFSET, 1)

            held = asyncio.ensure_future(consumer.pull(queue, 1, suspend_ms=HELD_MS))
            await asyncio.sleep(0.5)
            assert not held.done()
            await producer.send(Message(topic=topic, body=b"2"))
            assert [message.body for message in (await held).messages] == [b"2"]

            assert await consumer.calls.committed_offset(queue) in (None, 0)
            await consumer.calls.commit(queue, 2)
            assert await consumer.calls.committed_offset(queue) == 2

    run(cluster, scenario)


def test_messages_are_found_by_id_and_by_key(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        admin = Admin(client)
        await admin.create_topic(topic, queues=2)
        async with Producer(client) as producer:
            results = [
                await producer.send(Message(topic=topic, body=b"%d" % number, keys=("all", f"k{number}")))
                for number in range(3)
            ]
        viewed = await admin.view_message(results[1].offset_message_id)
        assert (viewed.body, viewed.message_id) == (b"1", results[1].message_id)

        async def found(key: str, number: int) -> list[bytes]:
            while len(messages := await admin.query_by_key(topic, key)) < number:  # noqa: ASYNC110 - at the broker
                await asyncio.sleep(POLL_S)
            return sorted(message.body for message in messages)

        assert await found("all", 3) == [b"0", b"1", b"2"]
        assert await found("k2", 1) == [b"2"]
        assert await found(results[0].message_id, 1) == [b"0"]
        assert await admin.query_by_key(topic, "nobody") == []

    run(cluster, scenario)


def test_administrator_reads_brokers_topics_settings_and_statistics(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        admin = Admin(client)
        await admin.create_topic(topic, queues=3)
        assert topic in await admin.topics()
        assert await admin.masters() == {"broker-a": cluster.broker_address}
        assert len(await admin.topic_stats(topic)) == 3
        assert (await admin.broker_config(cluster.broker_address))["brokerName"] == "broker-a"
        assert "putTps" in await admin.runtime_info(cluster.broker_address)
        await admin.delete_topic(topic)
        assert not await admin.topic_exists(topic)

    run(cluster, scenario)


@pytest.mark.one_in(2)
@pytest.mark.ours_only
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_client_resumes_after_a_broker_restart_and_receives_delayed_messages_once(
    new_cluster: NewCluster, clean: bool
) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client, cluster: Cluster) -> None:
        await Admin(client).create_topic(topic, queues=4)
        got = Collected()
        consumer = subscribed(client, group, topic, got)
        async with consumer, Producer(client) as producer:
            await settled(client, topic, consumer)
            for number in range(20):
                await producer.send(Message(topic=topic, body=b"%d" % number), delay="2s" if number % 2 else None)
            await until(lambda: len(got.messages) >= 10)
            await asyncio.to_thread(cluster.stop if clean else cluster.kill)
            await asyncio.to_thread(cluster.start)
            await producer.send(Message(topic=topic, body=b"after"), timeout_ms=30_000)
            await until(lambda: b"after" in got.bodies)
            await until(lambda: len(got.messages) >= 21)
            await asyncio.sleep(1)
        assert Counter(got.bodies) == Counter([*(b"%d" % number for number in range(20)), b"after"])

    with new_cluster() as cluster:
        run(cluster, lambda client: scenario(client, cluster))
