"""Concurrent and cancelled starts and closes: nothing keeps running, no completed work is lost."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from delaymq.client import (
    Client,
    ClosedError,
    ConsumeFrom,
    MessageModel,
    Producer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.client.core.shared_calls import SharedCalls
from delaymq.client.options import ClientOptions
from delaymq.protocol.codes import RequestCode
from delaymq_testing.client.consuming import QUICK, Collected, subscribed
from delaymq_testing.client.fake_peer import FakeBroker, run, running

FIRST = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, close_timeout_ms=60_000)


async def ignored(message: ReceivedMessage) -> None:
    """Done."""


def test_handler_hanging_at_close_is_cancelled_and_its_message_stays_uncommitted() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        started = asyncio.Event()

        async def hang(message: ReceivedMessage) -> None:
            if message.body == b"hang":
                started.set()
                await asyncio.Event().wait()

        broker.add("T", b"ok")
        broker.add("T", b"hang")
        async with running(broker) as (client, _):
            async with subscribed(client, hang):
                await started.wait()
            assert broker.committed == 1
            assert {command.fields["consumerGroup"] for command in broker.asked(RequestCode.UNREGISTER_CLIENT)} == {"G"}

    run(scenario)


def test_client_without_peers_closes_cleanly() -> None:
    async def scenario() -> None:
        async with Client("127.0.0.1:1", ClientOptions(connect_timeout_ms=200)) as client:
            consumer = subscribed(client, Collected())
            await consumer.start()
            await asyncio.sleep(0.05)

    run(scenario)


def test_client_closed_while_a_consumer_closes_lets_it_commit_first() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"0")
        started, end = asyncio.Event(), asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            started.set()
            await end.wait()

        async with running(broker) as (client, _):
            consumer = subscribed(client, handle, replace(QUICK, close_timeout_ms=10_000))
            await consumer.start()
            await started.wait()
            closes = [asyncio.create_task(consumer.close())]
            await asyncio.sleep(0.01)
            closes += [asyncio.create_task(client.close()), asyncio.create_task(client.close())]
            await asyncio.sleep(0.05)
            end.set()
            await asyncio.gather(*closes)
            assert broker.committed == 1

    run(scenario)


def test_cancelled_close_leaves_nothing_running() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        started = asyncio.Event()

        async def hang(message: ReceivedMessage) -> None:
            started.set()
            await asyncio.Event().wait()

        broker.add("T", b"0")
        async with running(broker) as (client, _):
            consumer = subscribed(client, hang, PushConsumerOptions(consume_from=ConsumeFrom.FIRST))
            await consumer.start()
            await started.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await consumer.close()
            assert consumer.assigned == []
            assert broker.committed is None
        await asyncio.sleep(0)

    run(scenario)


def test_close_during_a_rebalance_commits_completed_messages() -> None:
    async def scenario() -> None:
        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, commit_interval_ms=60_000, close_timeout_ms=100)
        for changed_meanwhile in ("members", "nothing"):
            broker = FakeBroker()
            done = asyncio.Event()

            async def handle(message: ReceivedMessage, done: asyncio.Event = done) -> None:
                if message.body == b"hangs":
                    done.set()
                    await asyncio.Event().wait()

            for body in (b"0", b"1", b"hangs"):
                broker.add("T", body)
            async with running(broker) as (client, _):
                async with subscribed(client, handle, options):
                    await done.wait()
                    if changed_meanwhile == "members":
                        broker.members.append("0")
                    broker.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})
                    await asyncio.sleep(0.1)  # the queue is being given up, or all is as before
                assert broker.committed == 2

    run(scenario)


def test_closing_client_accepts_no_new_members() -> None:
    async def scenario() -> None:
        broker, at_work, go_on = FakeBroker(), asyncio.Event(), asyncio.Event()
        broker.add("T", b"x")

        async def handle(message: ReceivedMessage) -> None:
            at_work.set()
            await go_on.wait()

        async with running(broker) as (client, _):
            consumer = subscribed(client, handle, FIRST)
            await consumer.start()
            await at_work.wait()
            closing = asyncio.ensure_future(client.close())
            await asyncio.sleep(0)
            with pytest.raises(ClosedError, match="the client is closed"):
                await Producer(client, "late").start()
            go_on.set()
            await closing

    run(scenario)


def test_cancelled_close_of_the_client_stops_all_members() -> None:
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


def test_second_start_is_rejected_and_keeps_the_offsets_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        path = tmp_path / "offsets.json"
        options = PushConsumerOptions(model=MessageModel.BROADCASTING, offsets_path=path)
        async with running(broker) as (client, _):
            first = subscribed(client, ignored, options)
            async with first:
                with pytest.raises(ValueError, match="has already been started"):
                    await first.start()
            # The first one's end has left the file to others.
            async with PushConsumer(client, "G", ignored, options):
                pass

    run(scenario)


def test_caller_cancelled_while_the_client_closes_is_cancelled() -> None:
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
