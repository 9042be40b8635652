"""Python consumers with either broker: messages that fail or time out, alone and in batches."""

import asyncio
from collections import Counter
from dataclasses import replace

from compat.python_scenario import FROM_FIRST, first_of, new_name, run, subscribed, until
from delaymq.client import (
    Admin,
    BatchPushConsumer,
    Client,
    ConsumeFrom,
    Message,
    Outcome,
    Producer,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.message.names import dead_letter_topic
from harness.brokers import Cluster


def test_failed_message_is_redelivered_and_finally_becomes_a_dead_letter(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        times: list[int] = []

        async def fail(message: ReceivedMessage) -> Outcome | None:
            if message.body == b"good":
                return None
            assert message.topic == topic
            times.append(message.reconsume_times)
            if len(times) == 1:
                raise ValueError("the handler's own error")
            return Outcome.RETRY

        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, max_reconsume_times=2)
        consumer = subscribed(client, group, topic, fail, options)
        async with consumer, Producer(client) as producer:
            await producer.send(Message(topic=topic, body=b"bad", tags="T", keys=("k",)))
            await producer.send(Message(topic=topic, body=b"good"))
            await until(lambda: len(times) == 3)
            dead = await first_of(client, dead_letter_topic(group))
        assert times == [0, 1, 2]
        assert (dead.body, dead.tags, dead.keys) == (b"bad", "T", ("k",))

    run(cluster, scenario)


def test_message_with_handler_timeout_is_redelivered_without_blocking_the_queue(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        ended = asyncio.Event()
        seen: list[tuple[bytes, int]] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append((message.body, message.reconsume_times))
            if message.body == b"slow" and message.reconsume_times == 0:
                await ended.wait()

        options = replace(FROM_FIRST, consume_timeout_ms=300, commit_interval_ms=100)
        consumer = subscribed(client, group, topic, handle, options)
        async with consumer, Producer(client) as producer:
            for body in (b"slow", b"next"):
                await producer.send(Message(topic=topic, body=body))
            await until(lambda: (b"slow", 1) in seen)
            committed = 0
            while committed < 2:  # although the first handler still runs
                [progress] = (await Admin(client).consumer_progress(group, topic)).values()
                committed = progress.consumer_offset
            ended.set()
            await until(lambda: consumer.stats().running == 0)
            stats = consumer.stats()
        assert Counter(seen) == Counter([(b"slow", 0), (b"next", 0), (b"slow", 1)])
        assert (stats.topics[topic].consumed, stats.topics[topic].failed) == (2, 1)

    run(cluster, scenario)


def test_partially_acknowledged_batch_is_redelivered_from_first_failed_message(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")
    bodies = [b"%d" % number for number in range(20)]

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        lists: list[list[tuple[bytes, int]]] = []

        async def handle(messages: list[ReceivedMessage]) -> int | None:
            assert len({message.queue for message in messages}) == 1
            lists.append([(message.body, message.reconsume_times) for message in messages])
            # Each time, only the first messages of the list are acknowledged.
            return 3 if len(messages) > 3 and messages[0].reconsume_times == 0 else None

        consumer = BatchPushConsumer(client, group, handle, replace(FROM_FIRST, batch=8, concurrency=1))
        consumer.subscribe(topic)
        async with Producer(client) as producer:
            await producer.send_batch([Message(topic=topic, body=body) for body in bodies])
            async with consumer:
                await until(lambda: consumer.stats().topics[topic].consumed >= 20)
        assert [[int(body) for body, times in each if times == 0] for each in lists[:3]] == [
            list(range(8)), list(range(8, 16)), list(range(16, 20)),
        ]  # fmt: skip
        again = Counter(body for each in lists for body, times in each if times == 1)
        assert again == Counter([*bodies[3:8], *bodies[11:16], *bodies[19:]])

    run(cluster, scenario)
