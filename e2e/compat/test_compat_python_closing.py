"""Closed Python clients hold no resources."""

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from compat.python_scenario import FROM_FIRST, new_name, subscribed, until
from delaymq.client import (
    Admin,
    BatchPushConsumer,
    Client,
    LitePullConsumer,
    Message,
    MessageModel,
    Outcome,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from harness.brokers import Cluster


def resources() -> tuple[int, int, int]:
    """Return the number of other tasks, of descriptors, and of timers that have not expired."""
    loop = asyncio.get_running_loop()
    timers = [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
    return len(asyncio.all_tasks()) - 1, len(os.listdir("/proc/self/fd")), len(timers)


async def _until_as_before(before: tuple[int, int, int]) -> None:
    """Wait until the resources are released: sockets close shortly after their owner, leaks exceed the time limit."""
    while (now := resources()) != before:
        print(f"tasks, descriptors and timers: {before} before, {now} now")
        await asyncio.sleep(0.1)


def test_closed_client_leaves_no_task_descriptor_or_timer(cluster: Cluster, tmp_path: Path) -> None:
    topic = new_name("Topic")
    kinds = {
        "clustering": replace(FROM_FIRST, commit_interval_ms=50),
        "ordered": replace(FROM_FIRST, ordered=True),
        "broadcasting": replace(
            FROM_FIRST, model=MessageModel.BROADCASTING, offsets_path=tmp_path / "own" / "offsets.json"
        ),
    }

    async def one_life() -> None:
        failing = Counter[str]()

        async def handle(message: ReceivedMessage) -> Outcome | None:
            failing[message.message_id] += 1
            return Outcome.RETRY if failing[message.message_id] == 1 else None

        async with Client(cluster.namesrv_address) as client, Producer(client) as producer, AsyncExitStack() as stack:
            consumers = [PushConsumer(client, new_name("Group"), handle, options) for options in kinds.values()]
            batches = BatchPushConsumer(client, new_name("Group"), _nothing, replace(FROM_FIRST, batch=4))
            pushing: list[PushConsumer | BatchPushConsumer] = [*consumers, batches]
            for each in pushing:
                each.subscribe(topic)
                await stack.enter_async_context(each)
            polled = await stack.enter_async_context(LitePullConsumer(client, new_name("Group")))
            polled.subscribe(topic)
            for _ in range(10):
                await producer.send(Message(topic=topic, body=b"x"))
            assert await polled.poll(timeout_ms=30_000)
            # During retries, pauses and held pulls.
            await until(lambda: all(_pulled(each, topic) >= 10 for each in pushing))

    async def scenario() -> None:
        async with asyncio.timeout(60), Client(cluster.namesrv_address) as client:
            await Admin(client).create_topic(topic, queues=2)
        await one_life()
        before = resources()
        for _ in range(3):
            await one_life()
        await _until_as_before((0, *before[1:]))

    asyncio.run(scenario())


async def _nothing(messages: list[ReceivedMessage]) -> None:
    return None


def _pulled(consumer: PushConsumer | BatchPushConsumer, topic: str) -> int:
    return consumer.stats().topics[topic].pulled


def test_cancellation_at_any_moment_leaves_no_resources_behind(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def life(started: asyncio.Event) -> None:
        async def hang(message: ReceivedMessage) -> None:
            await asyncio.Event().wait()

        async with Client(cluster.namesrv_address) as client, Producer(client) as producer:
            consumer = subscribed(client, group, topic, hang)
            async with consumer:
                started.set()
                while True:
                    await producer.send(Message(topic=topic, body=b"x"))

    async def scenario() -> None:
        async with asyncio.timeout(60), Client(cluster.namesrv_address) as client:
            await Admin(client).create_topic(topic, queues=2)
        before = resources()
        for pause_s in (0, 0.001, 0.01, 0.1, 0.3):
            started = asyncio.Event()
            task = asyncio.create_task(life(started))
            await started.wait()
            await asyncio.sleep(pause_s)
            task.cancel()
            # Closing waits for handlers that hang; a second cancellation ends that wait as well.
            while not task.done():
                await asyncio.sleep(0.1)
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await _until_as_before(before)

    asyncio.run(scenario())
