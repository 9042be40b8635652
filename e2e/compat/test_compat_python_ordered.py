"""Ordered Python consumers with either broker: in order despite failures and rebalances."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace

from compat.python_scenario import FROM_FIRST, first_of, new_name, run, settled, subscribed, until
from delaymq.client import (
    Admin,
    BatchPushConsumer,
    Client,
    ConsumeFrom,
    Message,
    Outcome,
    Producer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.message.names import dead_letter_topic
from harness.brokers import Cluster


def test_ordered_consumer_handles_a_queue_in_order_even_if_a_message_fails(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=2)
        handled: dict[int, list[bytes]] = {0: [], 1: []}
        failures = Counter[bytes]()

        async def handle(message: ReceivedMessage) -> Outcome | None:
            await asyncio.sleep(0.001)
            if message.body == b"3" and failures[message.body] < 2:
                failures[message.body] += 1
                return Outcome.RETRY
            handled[message.queue.queue_id].append(message.body)
            return None

        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, ordered=True, local_retry_ms=100)
        consumer = subscribed(client, group, topic, handle, options)
        async with consumer, Producer(client) as producer:
            queues = await producer.queues(topic)
            for number in range(40):
                await producer.send(Message(topic=topic, body=b"%d" % number), queue=queues[number % 2])
            await until(lambda: sum(map(len, handled.values())) >= 40)
        assert handled[0] == [b"%d" % number for number in range(0, 40, 2)]
        assert handled[1] == [b"%d" % number for number in range(1, 40, 2)]
        assert failures[b"3"] == 2

    run(cluster, scenario)


def test_ordered_message_that_always_fails_becomes_a_dead_letter_and_later_ones_follow(
    cluster: Cluster,
) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        seen: list[tuple[bytes, int]] = []

        async def handle(message: ReceivedMessage) -> Outcome | None:
            seen.append((message.body, message.reconsume_times))
            return Outcome.RETRY if message.body == b"bad" else None

        options = replace(FROM_FIRST, ordered=True, max_reconsume_times=2, local_retry_ms=50)
        consumer = subscribed(client, group, topic, handle, options)
        async with consumer, Producer(client) as producer:
            for body in (b"1", b"bad", b"2"):
                await producer.send(Message(topic=topic, body=body))
            await until(lambda: (b"2", 0) in seen)
            dead = await first_of(client, dead_letter_topic(group))
        assert seen == [(b"1", 0), (b"bad", 0), (b"bad", 1), (b"bad", 2), (b"2", 0)]
        assert dead.body == b"bad"

    run(cluster, scenario)


def test_ordered_batch_continues_after_the_acknowledged_messages(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")
    bodies = [b"%d" % number for number in range(9)]

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        done: list[bytes] = []

        async def handle(messages: list[ReceivedMessage]) -> int:
            await asyncio.sleep(0.001)
            done.extend(message.body for message in messages[:2])
            return min(len(messages), 2)

        options = replace(FROM_FIRST, ordered=True, batch=4, local_retry_ms=20)
        consumer = BatchPushConsumer(client, group, handle, options)
        consumer.subscribe(topic)
        async with consumer, Producer(client) as producer:
            await producer.send_batch([Message(topic=topic, body=body) for body in bodies])
            await until(lambda: len(done) >= len(bodies))
        assert done == bodies

    run(cluster, scenario)


def test_queue_is_handled_in_order_by_one_member_while_ordered_members_join_and_leave(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")
    number, queues = 400, 4

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=queues)
        active = Counter[int]()
        reached = dict.fromkeys(range(queues), -1)
        handled: set[bytes] = set()
        wrong: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            queue_id = message.queue.queue_id
            active[queue_id] += 1
            if active[queue_id] > 1:
                wrong.append(f"queue {queue_id} at two members")
            if message.queue_offset > reached[queue_id] + 1:
                wrong.append(f"queue {queue_id} jumps from {reached[queue_id]} to {message.queue_offset}")
            await asyncio.sleep(0.005)
            reached[queue_id] = max(reached[queue_id], message.queue_offset)
            handled.add(message.body)
            active[queue_id] -= 1

        options = replace(FROM_FIRST, ordered=True, lock_retry_ms=100)

        async def member(stack: AsyncExitStack) -> PushConsumer:
            own = await stack.enter_async_context(Client(cluster.namesrv_address))
            consumer = subscribed(own, group, topic, handle, options)
            await stack.enter_async_context(consumer)
            return consumer

        async def send() -> None:
            for each in range(number):
                await producer.send(Message(topic=topic, body=b"%d" % each), queue=targets[each % queues])
                await asyncio.sleep(0.004)

        async with Producer(client) as producer, AsyncExitStack() as staying, asyncio.TaskGroup() as group_of_tasks:
            targets = await producer.queues(topic)
            first = await member(staying)
            await settled(client, topic, first)
            group_of_tasks.create_task(send())
            for _ in range(2):
                async with AsyncExitStack() as passing:
                    second = await member(passing)
                    await settled(client, topic, first, second)
                    await asyncio.sleep(0.2)
                await settled(client, topic, first)
            await until(lambda: len(handled) == number)
        assert wrong == []

    run(cluster, scenario)
