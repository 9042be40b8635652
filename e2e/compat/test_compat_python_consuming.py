"""Python consumers with either broker: received messages, rebalancing, and resumption."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import replace

from compat.python_scenario import FROM_FIRST, HELD_MS, Collected, new_name, run, settled, subscribed, until
from delaymq.client import (
    Admin,
    Allocation,
    Client,
    ConsumeFrom,
    GroupConfig,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from harness.brokers import Cluster


def test_only_messages_with_subscribed_tags_are_received(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        got = Collected()
        await Admin(client).create_topic(topic, queues=1)
        consumer = PushConsumer(client, group, got, FROM_FIRST)
        # "Aa" and "BB" have the same hash code: the broker returns both, and the client must filter.
        consumer.subscribe(topic, "TagA || Aa")
        async with consumer, Producer(client) as producer:
            for tag in ("TagB", "BB", "", "TagA", "Aa"):
                await producer.send(Message(topic=topic, body=tag.encode(), tags=tag))
            await until(lambda: len(got.messages) >= 2)
            await asyncio.sleep(0.5)
        assert got.bodies == [b"TagA", b"Aa"]

    run(cluster, scenario)


def test_members_of_a_group_share_messages_and_each_group_receives_all(cluster: Cluster) -> None:
    topic, group, other = new_name("Topic"), new_name("Group"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=4)
        async with Client(cluster.namesrv_address) as second_client, Producer(client) as producer:
            collected = [Collected(), Collected(), Collected()]
            consumers = [
                PushConsumer(client, group, collected[0], FROM_FIRST),
                PushConsumer(second_client, group, collected[1], FROM_FIRST),
                PushConsumer(client, other, collected[2], FROM_FIRST),
            ]
            for consumer in consumers:
                consumer.subscribe(topic)
                await consumer.start()
            await settled(client, topic, *consumers[:2])
            assert [len([q for q in consumer.assigned if q.topic == topic]) for consumer in consumers[:2]] == [2, 2]
            bodies = [b"%d" % number for number in range(40)]
            for body in bodies:
                await producer.send(Message(topic=topic, body=body))
            await until(lambda: len(collected[0].messages) + len(collected[1].messages) >= 40)
            await until(lambda: len(collected[2].messages) >= 40)
            await second_client.close()
            await settled(client, topic, consumers[0])
        assert Counter(collected[0].bodies + collected[1].bodies) == Counter(bodies)
        assert collected[0].messages
        assert collected[1].messages
        assert Counter(collected[2].bodies) == Counter(bodies)

    run(cluster, scenario)


def test_group_resumes_at_its_committed_offsets_and_its_progress_is_reported(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=2)
        first, second = Collected(), Collected()
        async with Producer(client) as producer:
            for handler, bodies in ((first, (b"1", b"2", b"3")), (second, (b"4", b"5"))):
                for body in bodies:
                    await producer.send(Message(topic=topic, body=body))
                consumer = subscribed(client, group, topic, handler)
                async with consumer:
                    await until(lambda handler=handler, bodies=bodies: len(handler.messages) >= len(bodies))
        assert Counter(first.bodies) == Counter((b"1", b"2", b"3"))
        assert Counter(second.bodies) == Counter((b"4", b"5"))
        progress = await Admin(client).consumer_progress(group, topic)
        assert sum(each.consumer_offset for each in progress.values()) == 5
        assert all(each.consumer_offset == each.broker_offset for each in progress.values())

    run(cluster, scenario)


def test_circle_allocation_assigns_every_other_queue(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=5)
        options = replace(FROM_FIRST, allocation=Allocation.CIRCLE)
        async with Client(cluster.namesrv_address) as second_client, Producer(client) as producer:
            collected = [Collected(), Collected()]
            consumers = [
                PushConsumer(each, group, handler, options)
                for each, handler in zip((client, second_client), collected, strict=True)
            ]
            for consumer in consumers:
                consumer.subscribe(topic)
                await consumer.start()
            await settled(client, topic, *consumers)
            numbers = [sorted(each.queue_id for each in c.assigned if each.topic == topic) for c in consumers]
            assert sorted(numbers) == [[0, 2, 4], [1, 3]]
            for queue in await producer.queues(topic):
                await producer.send(Message(topic=topic, body=b"%d" % queue.queue_id), queue=queue)
            await until(lambda: sum(len(each.messages) for each in collected) >= 5)
        for mine, each in zip(numbers, collected, strict=True):
            assert sorted(each.bodies) == [b"%d" % number for number in mine]

    run(cluster, scenario)


def test_topics_and_tags_can_change_at_run_time(cluster: Cluster) -> None:
    first, second, group = new_name("Topic"), new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        for topic in (first, second):
            await Admin(client).create_topic(topic, queues=1)
        got = Collected()
        consumer = PushConsumer(client, group, got, FROM_FIRST)
        consumer.subscribe(first, "A")
        async with consumer, Producer(client) as producer:

            async def send(topic: str, body: bytes, tag: str) -> None:
                await producer.send(Message(topic=topic, body=body, tags=tag))

            await send(first, b"1", "A")
            await until(lambda: len(got.messages) == 1)
            consumer.subscribe(second)
            await send(second, b"2", "X")
            await until(lambda: len(got.messages) == 2)
            consumer.subscribe(first, "B")
            await send(first, b"3", "A")
            await send(first, b"4", "B")
            await until(lambda: len(got.messages) == 3)
            consumer.unsubscribe(second)
            await until(lambda: not any(queue.topic == second for queue in consumer.assigned))
            await send(second, b"5", "X")
            await send(first, b"6", "B")
            await until(lambda: len(got.messages) == 4)
        assert got.bodies == [b"1", b"2", b"4", b"6"]

    run(cluster, scenario)


def test_new_group_starts_at_the_requested_position(strict_cluster: Cluster) -> None:
    # This broker treats messages as not in memory; otherwise brokers ignore the start position of a new group.
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        groups = {where: new_name("Group") for where in ("pulls", *ConsumeFrom)}
        await Admin(client).create_topic(topic, queues=1)
        for group in groups.values():
            await Admin(client).put_group(GroupConfig(group=group))
        async with Producer(client) as producer, PullConsumer(client, groups["pulls"]) as pulling:
            for body in (b"1", b"2"):
                await producer.send(Message(topic=topic, body=body))
            await asyncio.sleep(1.2)
            middle_ms = time.time_ns() // 1_000_000
            await asyncio.sleep(0.2)
            await producer.send(Message(topic=topic, body=b"3"))
            [queue] = await pulling.queues(topic)
            await pulling.pull(queue, 2, suspend_ms=HELD_MS)  # the real broker shows it a moment later
            assert await pulling.calls.min_offset(queue) == 0
            assert await pulling.calls.max_offset(queue) == 3
            assert await pulling.calls.offset_at(queue, middle_ms) == 2
            wanted = {
                ConsumeFrom.FIRST: [b"1", b"2", b"3", b"4"],
                ConsumeFrom.TIMESTAMP: [b"3", b"4"],
                ConsumeFrom.LAST: [b"4"],
            }
            got: dict[ConsumeFrom, Collected] = {}
            consumers: list[PushConsumer] = []
            for where in wanted:
                got[where] = Collected()
                options = PushConsumerOptions(consume_from=where, consume_timestamp_ms=middle_ms)
                consumer = PushConsumer(client, groups[where], got[where], options)
                consumer.subscribe(topic)
                await consumer.start()
                consumers.append(consumer)
            # A group that starts at the end must have determined it before further messages arrive.
            await until(lambda: all(_has_begun(consumer, topic) for consumer in consumers))
            await producer.send(Message(topic=topic, body=b"4"))
            await until(lambda: all(len(got[where].messages) >= len(wanted[where]) for where in wanted))
        assert {where: sorted(each.bodies) for where, each in got.items()} == wanted

    run(strict_cluster, scenario)


def _has_begun(consumer: PushConsumer, topic: str) -> bool:
    return any(each.queue.topic == topic and each.next_offset is not None for each in consumer.stats().queues)


def test_slow_handler_stops_pulls_at_the_memory_limit(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")
    number, body_bytes, answer_bytes = 120, 100_000, 256 * 1024

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=2)
        release = asyncio.Event()
        handled = Counter[str]()

        async def wait(message: ReceivedMessage) -> None:
            await release.wait()
            handled[message.message_id] += 1

        options = replace(FROM_FIRST, max_cached_bytes_of_topic=2_000_000)
        consumer = subscribed(client, group, topic, wait, options)
        async with Producer(client) as producer:
            for _ in range(number):
                await producer.send(Message(topic=topic, body=random.randbytes(body_bytes)))
            async with consumer:
                await until(lambda: consumer.stats().cached_bytes >= 2_000_000)
                for _ in range(20):
                    await asyncio.sleep(0.02)
                    assert consumer.stats().cached_bytes <= 2_000_000 + 2 * (answer_bytes + body_bytes)
                stats = consumer.stats()
                assert stats.cached_messages == stats.topics[topic].pulled < number
                assert stats.running == options.concurrency
                release.set()
                await until(lambda: handled.total() >= number)
                stats = consumer.stats()
                assert (stats.topics[topic].consumed, stats.topics[topic].failed) == (number, 0)
                assert (stats.cached_messages, stats.cached_bytes) == (0, 0)
        assert len(handled) == handled.total() == number

    run(cluster, scenario)
