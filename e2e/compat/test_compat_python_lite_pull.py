"""Polling with the Python client on either broker: rebalancing, seeks, pauses, commits, and redelivery after a
crash.
"""

import asyncio
from collections import Counter

from compat.python_scenario import POLL_S, new_name, run, until
from delaymq.client import (
    Admin,
    Client,
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageQueue,
    Producer,
    ReceivedMessage,
)
from harness.brokers import Cluster

FIRST = LitePullOptions(consume_from=ConsumeFrom.FIRST)


async def filled(client: Client, topic: str, number: int, *, queues: int = 1) -> None:
    """Create a topic with `number` numbered messages, sent to its queues in rotation."""
    await Admin(client).create_topic(topic, queues=queues)
    async with Producer(client) as producer:
        for each in range(number):
            await producer.send(Message(topic=topic, body=b"%d" % each, tags="ab"[each % 2]))


async def polled(consumer: LitePullConsumer, number: int) -> list[ReceivedMessage]:
    """Poll until exactly `number` messages have arrived, whatever the size of each poll."""
    messages: list[ReceivedMessage] = []
    while len(messages) < number:
        messages += await consumer.poll(max_messages=number - len(messages))
    return messages


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return [int(message.body) for message in messages]


def test_subscription_receives_all_messages_and_the_next_member_resumes_after_them(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await filled(client, topic, 100, queues=4)
        for expected in (range(60), range(60, 100)):
            consumer = LitePullConsumer(client, group, FIRST)
            consumer.subscribe(topic)
            async with consumer:
                got = await polled(consumer, len(expected))
                seen.update(numbers(got))
                assert {message.topic for message in got} == {topic}
                assert len(consumer.assigned) == 4
        assert seen == Counter(range(100))

    seen: Counter[int] = Counter()
    run(cluster, scenario)


def test_only_messages_with_subscribed_tags_are_received(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await filled(client, topic, 20)
        consumer = LitePullConsumer(client, new_name("Group"), FIRST)
        consumer.subscribe(topic, "b || c")
        async with consumer:
            assert numbers(await polled(consumer, 10)) == list(range(1, 20, 2))

    run(cluster, scenario)


def test_members_share_queues_and_remaining_member_takes_over(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await filled(client, topic, 40, queues=4)
        async with Client(cluster.namesrv_address) as second_client:
            consumers = [LitePullConsumer(each, group, FIRST) for each in (client, second_client)]
            got: list[list[ReceivedMessage]] = [[], []]

            async def collect(index: int) -> None:
                async for message in consumers[index]:
                    got[index].append(message)

            for consumer in consumers:
                consumer.subscribe(topic)
                await consumer.start()
            await until(lambda: [len(consumer.assigned) for consumer in consumers] == [2, 2])
            tasks = [asyncio.ensure_future(collect(index)) for index in range(2)]
            await until(lambda: {*numbers(got[0]), *numbers(got[1])} == set(range(40)))
            await second_client.close()
            await until(lambda: len(consumers[0].assigned) == 4)
            async with Producer(client) as producer:
                for number in range(40, 60):
                    await producer.send(Message(topic=topic, body=b"%d" % number))
            await until(lambda: set(range(40, 60)) <= set(numbers(got[0])))
            await consumers[0].close()
            await asyncio.gather(*tasks)

    run(cluster, scenario)


def test_explicitly_assigned_queues_support_seeks_by_offset_and_time(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await filled(client, topic, 30)
        await asyncio.sleep(0.05)
        async with Producer(client) as producer:
            later = await producer.send(Message(topic=topic, body=b"30"))
        async with Client(cluster.namesrv_address) as second_client:
            everybody = LitePullConsumer(client, group, FIRST)
            queue: MessageQueue = later.queue
            everybody.assign([queue])
            own = LitePullConsumer(second_client, group, FIRST)
            own.assign([queue])
            async with everybody, own:
                assert numbers(await polled(everybody, 31)) == list(range(31))
                assert numbers(await polled(own, 31)) == list(range(31))
                await own.seek(queue, 25)
                assert numbers(await polled(own, 2)) == [25, 26]
                await own.seek_to_begin(queue)
                [first] = await polled(own, 1)
                assert int(first.body) == 0
                [last] = [each for each in await polled(own, 30) if int(each.body) == 30]
                at = await own.offset_for_timestamp(queue, last.store_timestamp_ms)
                assert at <= later.queue_offset
                await own.seek(queue, at)
                assert later.queue_offset in [each.queue_offset for each in await polled(own, 31 - at)]
                await own.seek_to_end(queue)
                assert await own.poll(300) == []

    run(cluster, scenario)


def test_commit_stores_offsets_of_polled_messages(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await filled(client, topic, 20)
        options = LitePullOptions(consume_from=ConsumeFrom.FIRST, auto_commit=False)
        consumer = LitePullConsumer(client, group, options)
        consumer.subscribe(topic)
        async with consumer:
            [queue] = {message.queue for message in await polled(consumer, 7)}
            await consumer.commit()
            assert await consumer.committed(queue) == 7
            await polled(consumer, 5)
        # Polled messages that were not committed are received again.
        async with Client(cluster.namesrv_address) as next_client:
            consumer = LitePullConsumer(next_client, group, options)
            consumer.subscribe(topic)
            async with consumer:
                assert numbers(await polled(consumer, 13)) == list(range(7, 20))
                await consumer.commit({queue: 3})
                assert await consumer.committed(queue) == 3

    run(cluster, scenario)


def test_auto_commit_stores_offsets_of_messages_from_earlier_polls(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await filled(client, topic, 10)
        options = LitePullOptions(consume_from=ConsumeFrom.FIRST, commit_interval_ms=50)
        consumer = LitePullConsumer(client, group, options)
        consumer.subscribe(topic)
        async with consumer:
            [queue] = {message.queue for message in await polled(consumer, 4)}
            await consumer.poll(max_messages=1)
            while await consumer.committed(queue) != 4:  # noqa: ASYNC110 - at the broker
                await asyncio.sleep(POLL_S)

    run(cluster, scenario)


def test_paused_queue_does_not_hold_up_other_queues(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await filled(client, topic, 40, queues=2)
        consumer = LitePullConsumer(client, new_name("Group"), FIRST)
        queues = await consumer.queues(topic)
        consumer.assign(queues)
        consumer.pause(queues[0])
        async with consumer:
            assert {message.queue for message in await polled(consumer, 20)} == {queues[1]}
            assert await consumer.poll(200) == []
            consumer.resume(queues[0])
            assert {message.queue for message in await polled(consumer, 20)} == {queues[0]}

    run(cluster, scenario)


def test_offset_out_of_range_is_replaced_by_the_nearest_valid_one(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await filled(client, topic, 5)
        consumer = LitePullConsumer(client, new_name("Group"), FIRST)
        [queue] = await consumer.queues(topic)
        consumer.assign([queue])
        await consumer.seek(queue, 1_000)
        async with consumer:
            task = asyncio.ensure_future(polled(consumer, 1))
            async with Producer(client) as producer:
                while not task.done():
                    await producer.send(Message(topic=topic, body=b"new"))
                    await asyncio.sleep(0.1)
            [message] = task.result()
            assert message.body == b"new"

    run(cluster, scenario)
