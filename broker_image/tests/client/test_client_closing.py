"""Starts and closes that cross: nobody joins a client that ends, and nothing goes on when a close is cancelled."""

import asyncio
from pathlib import Path

import pytest
from client_fake_peer import FakeBroker, run, running
from delaymq.client import (
    ClosedError,
    ConsumeFrom,
    MessageModel,
    Producer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.client.shared_calls import SharedCalls

FIRST = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, close_timeout_ms=60_000)


async def ignored(message: ReceivedMessage) -> None:
    """Done."""


def test_nobody_joins_a_client_that_is_being_closed() -> None:
    async def scenario() -> None:
        broker, at_work, go_on = FakeBroker(), asyncio.Event(), asyncio.Event()
        broker.add("T", b"x")

        async def handle(message: ReceivedMessage) -> None:
            at_work.set()
            await go_on.wait()

        async with running(broker) as (client, _):
            consumer = PushConsumer(client, "G", handle, FIRST)
            consumer.subscribe("T")
            await consumer.start()
            await at_work.wait()
            closing = asyncio.ensure_future(client.close())
            await asyncio.sleep(0)
            with pytest.raises(ClosedError, match="the client is closed"):
                await Producer(client, "late").start()
            go_on.set()
            await closing

    run(scenario)


def test_a_close_of_the_client_that_is_cancelled_ends_the_work_of_all_members() -> None:
    async def scenario() -> None:
        broker, at_work = FakeBroker(), asyncio.Event()
        broker.add("T", b"x")

        async def hang(message: ReceivedMessage) -> None:
            at_work.set()
            await asyncio.Event().wait()

        async with running(broker) as (client, _):
            consumers = [PushConsumer(client, "G1", hang, FIRST), PushConsumer(client, "G2", ignored, FIRST)]
            for consumer in consumers:
                consumer.subscribe("T")
                await consumer.start()
            await at_work.wait()
            closing = asyncio.ensure_future(client.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled()
            assert client.members == []
            # `run` counts the tasks that are left.

    run(scenario)


def test_a_second_start_is_refused_and_leaves_the_file_of_offsets_with_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        path = tmp_path / "offsets.json"
        options = PushConsumerOptions(model=MessageModel.BROADCASTING, offsets_path=path)
        async with running(broker) as (client, _):
            first = PushConsumer(client, "G", ignored, options)
            first.subscribe("T")
            async with first:
                with pytest.raises(ValueError, match="is started already"):
                    await first.start()
            # The first one's end has left the file to others.
            async with PushConsumer(client, "G", ignored, options):
                pass

    run(scenario)


def test_a_caller_that_is_cancelled_as_the_client_is_closed_is_cancelled() -> None:
    async def scenario() -> None:
        calls: SharedCalls[str, None] = SharedCalls()
        caller = asyncio.ensure_future(calls.call("key", asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(calls.close())
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller, closing])
        assert caller.cancelled()

    run(scenario)
