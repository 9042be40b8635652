"""Sending with the Python client on either broker: order by key, any number of batches, limits, a broker failure."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import pytest
from compat.python_scenario import LIMIT_S, NewCluster, new_name, run
from delaymq.client import (
    Admin,
    Client,
    IllegalMessageError,
    LitePullConsumer,
    Message,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    RefusedError,
    SendError,
    SendResult,
    SendStatus,
    split_batches,
)
from harness.brokers import Cluster

SYSTEM_BUSY = 2


async def taken(send: Callable[[], Awaitable[SendResult]]) -> SendResult:
    """Repeat a send while the broker rejects it as busy (as RocketMQ's does on a slow machine)."""
    while True:
        try:
            return await send()
        except RefusedError as error:
            if error.code != SYSTEM_BUSY:
                raise
            await asyncio.sleep(0.1)


async def stored(client: Client, topic: str, number: int) -> list[ReceivedMessage]:
    """Return `number` messages of all queues of `topic`, from the beginning."""
    consumer = LitePullConsumer(client, new_name("Group"))
    queues = await consumer.queues(topic)
    consumer.assign(queues)
    for queue in queues:
        await consumer.seek(queue, 0)
    messages: list[ReceivedMessage] = []
    async with consumer:
        while len(messages) < number:
            messages += await consumer.poll()
    return messages


def test_messages_with_one_ordering_key_are_in_one_queue_in_send_order(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=8)
        keys = [f"order {number}" for number in range(12)]

        async def send_all(producer: Producer, key: str) -> None:
            for number in range(5):
                message = Message(topic=topic, body=f"{key}/{number}".encode())
                await taken(partial(producer.send, message, ordering_key=key))

        async with Producer(client) as producer:
            await asyncio.gather(*(send_all(producer, key) for key in keys))
        messages = await stored(client, topic, 60)
        queues_used = set()
        for key in keys:
            own = [message for message in messages if message.body.startswith(f"{key}/".encode())]
            assert len({message.queue for message in own}) == 1
            queues_used.add(own[0].queue)
            ordered = sorted(own, key=lambda message: message.queue_offset)
            assert [message.body for message in ordered] == [f"{key}/{number}".encode() for number in range(5)]
        assert len(queues_used) > 1

    run(cluster, scenario)


def test_batches_of_any_number_of_messages_deliver_each_message_once(cluster: Cluster) -> None:
    topic, other = new_name("Topic"), new_name("Topic")

    async def scenario(client: Client) -> None:
        for name in (topic, other):
            await Admin(client).create_topic(name, queues=2)
        messages = [
            Message(
                topic=topic if number % 3 else other, body=b"%d " % number + bytes(number % 700),
                tags="ab"[number % 2], keys=(f"k{number}",), properties={"number": str(number)},
            )
            for number in range(1_000)
        ]  # fmt: skip
        batches = list(split_batches(messages, max_bytes=64 * 1024))
        assert len(batches) > 4
        async with Producer(client) as producer:
            results = await asyncio.gather(*(taken(partial(producer.send_batch, batch)) for batch in batches))
        assert all(result.status is SendStatus.OK for result in results)
        got = await stored(client, topic, 666) + await stored(client, other, 334)
        assert Counter(message.body for message in got) == Counter(message.body for message in messages)
        by_number = {message.properties["number"]: message for message in got}
        for number in (0, 1, 999):
            sent, received = messages[number], by_number[str(number)]
            assert (received.topic, received.tags, received.keys) == (sent.topic, sent.tags, sent.keys)

    run(cluster, scenario)


def test_a_thousand_concurrent_sends_arrive_once_each(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=4)
        options = ProducerOptions(max_unanswered_sends=100, send_timeout_ms=30_000)
        async with Producer(client, options=options) as producer:
            bodies = [b"%d" % number for number in range(1_000)]
            sends = [partial(producer.send, Message(topic=topic, body=body)) for body in bodies]
            results = await asyncio.gather(*(taken(send) for send in sends))
        places = {(result.queue, result.queue_offset) for result in results}
        assert len(places) == 1_000
        assert Counter(message.body for message in await stored(client, topic, 1_000)) == Counter(bodies)

    run(cluster, scenario)


def test_compressible_and_incompressible_bodies_arrive_unchanged(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        noise = bytes((number * number * 7919 >> 5) & 255 for number in range(5_000))
        bodies = [noise, b"abc" * 200_000, b"x" * 4_096]
        async with Producer(client) as producer:
            for body in bodies:
                await producer.send(Message(topic=topic, body=body))
        got = sorted(await stored(client, topic, 3), key=lambda message: message.queue_offset)
        assert [message.body for message in got] == bodies
        assert [message.sys_flag & 1 for message in got][1:] == [1, 0]

    run(cluster, scenario)


def test_delay_as_timedelta_is_observed(cluster: Cluster, against: str) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        async with Producer(client) as producer:
            await producer.send(Message(topic=topic, body=b"later"), delay=timedelta(seconds=2))
        [message] = await stored(client, topic, 1)
        assert message.delay_level == (2 if against == "real" else 0)
        assert message.store_timestamp_ms - message.born_timestamp_ms >= 2_000

    run(cluster, scenario)


def test_message_above_the_limit_is_rejected_by_client_and_broker(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        noise = b"".join((number * 2654435761 & 0xFFFFFFFF).to_bytes(4, "big") for number in range(5 * 1024 * 256))
        async with Producer(client) as producer:
            with pytest.raises(IllegalMessageError, match="send less, or raise maxMessageSize"):
                await producer.send(Message(topic=topic, body=noise))
        options = ProducerOptions(max_message_bytes=8 * 1024 * 1024, compress_above_bytes=8 * 1024 * 1024)
        async with Producer(client, options=options) as producer:
            with pytest.raises(RefusedError) as caught:
                await producer.send(Message(topic=topic, body=noise))
            assert caught.value.code == 13
            # The connection is still usable.
            assert (await producer.send(Message(topic=topic, body=b"small"))).status is SendStatus.OK

    run(cluster, scenario)


def test_one_way_sends_with_one_ordering_key_are_in_one_queue(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=8)
        async with Producer(client) as producer:
            ids = [
                await producer.send_oneway(Message(topic=topic, body=b"%d" % number), ordering_key="k")
                for number in range(20)
            ]
            got = await stored(client, topic, 20)
        assert len({message.queue for message in got}) == 1
        assert sorted(message.message_id for message in got) == sorted(ids)

    run(cluster, scenario)


def test_sends_resume_after_a_broker_kill(new_cluster: NewCluster) -> None:
    topic = new_name("Topic")

    async def scenario(cluster: Cluster) -> None:
        async with asyncio.timeout(LIMIT_S), Client(cluster.namesrv_address) as client:
            await Admin(client).create_topic(topic, queues=1)
            options = ProducerOptions(latency_faults=True)
            async with Producer(client, options=options) as producer:
                acknowledged = [(await producer.send(Message(topic=topic, body=b"before"))).message_id]
                await asyncio.to_thread(cluster.kill)
                with pytest.raises(SendError):
                    await producer.send(Message(topic=topic, body=b"meanwhile"), timeout_ms=1_000)
                await asyncio.to_thread(cluster.start)
                # The only broker is marked as faulty, but used nevertheless.
                while len(acknowledged) < 5:
                    try:
                        acknowledged.append((await producer.send(Message(topic=topic, body=b"after"))).message_id)
                    except SendError:
                        continue
            found = {message.message_id for message in await stored(client, topic, 5)}
            assert set(acknowledged) <= found

    with new_cluster(flushDiskType="SYNC_FLUSH") as cluster:
        asyncio.run(scenario(cluster))
