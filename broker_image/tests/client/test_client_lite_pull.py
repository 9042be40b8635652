"""Polling against scripted brokers: returned messages, completion and commits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from delaymq.client import (
    Client,
    ClosedError,
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    MessageQueue,
    RefusedError,
)
from delaymq.client.consumer.offset_store.broker_offsets import BrokerOffsets
from delaymq.client.consumer.offset_store.lite_offsets import SeekableOffsets
from delaymq.client.consumer.queues.poll_buffer import PollBuffer
from delaymq.client.consumer.queues.queue_reader import QueueReader
from delaymq.client.core.queue_calls import QueueCalls
from delaymq.client.messages import ReceivedMessage
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until

FIRST = LitePullOptions(consume_from=ConsumeFrom.FIRST, commit_interval_ms=3_600_000)
QUEUE = MessageQueue("broker-a", 0, "T")


def filled(count: int) -> FakeBroker:
    broker = FakeBroker()
    for number in range(count):
        broker.add("T", b"%d" % number)
    return broker


@asynccontextmanager
async def consuming(
    broker: FakeBroker, options: LitePullOptions = FIRST, *, assigned: bool = False
) -> AsyncIterator[tuple[LitePullConsumer, Client]]:
    async with running(broker) as (client, _):
        consumer = LitePullConsumer(client, "G", options)
        if assigned:
            consumer.assign([QUEUE])
        else:
            consumer.subscribe("T")
        async with consumer:
            yield consumer, client


async def polled(consumer: LitePullConsumer, count: int) -> list[ReceivedMessage]:
    """Poll until exactly `count` messages have arrived, whatever the size of each poll."""
    messages: list[ReceivedMessage] = []
    while len(messages) < count:
        messages += await consumer.poll(max_messages=count - len(messages))
    return messages


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


@pytest.mark.parametrize("assigned", [False, True])
def test_polls_return_a_queue_in_order_and_a_close_commits_it(assigned: bool) -> None:
    async def scenario() -> None:
        broker = filled(100)
        async with consuming(broker, assigned=assigned) as (consumer, _):
            messages = await polled(consumer, 100)
            assert bodies(messages) == [b"%d" % number for number in range(100)]
            assert consumer.assigned == [QUEUE]
            assert await consumer.poll(10) == []
            assert broker.committed is None
        assert broker.committed == 100

    run(scenario)


def test_poll_returns_at_most_the_requested_number_and_waits_for_the_first() -> None:
    async def scenario() -> None:
        broker = filled(10)
        async with consuming(broker) as (consumer, _):
            assert bodies(await polled(consumer, 3)) == [b"0", b"1", b"2"]
            assert bodies(await consumer.poll(max_messages=5)) == [b"3", b"4", b"5", b"6", b"7"]
            assert bodies(await consumer.poll()) == [b"8", b"9"]
            assert await consumer.poll(0) == []
            assert await consumer.poll(50) == []

    run(scenario)


def test_only_finished_messages_are_committed() -> None:
    async def scenario() -> None:
        broker = filled(10)
        options = LitePullOptions(consume_from=ConsumeFrom.FIRST, commit_interval_ms=20)
        async with consuming(broker, options) as (consumer, _):
            await polled(consumer, 4)
            await until(lambda: broker.committed == 0)
            await asyncio.sleep(0.1)
            assert broker.committed == 0  # the four are being worked on
            await consumer.poll(max_messages=2)
            await until(lambda: broker.committed == 4)

    run(scenario)


def test_failed_messages_return_and_finished_later_ones_do_not() -> None:
    async def scenario() -> None:
        broker = filled(10)

        async def fail_at_four() -> None:
            async with consuming(broker) as (consumer, _):
                async for message in consumer:
                    if message.body == b"4":
                        raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_at_four()
        assert broker.committed == 4
        broker.members.clear()
        async with consuming(broker) as (consumer, _):
            assert bodies(await polled(consumer, 1)) == [b"4"]

    run(scenario)


def test_exited_loop_finished_earlier_messages_and_the_next_continues() -> None:
    async def scenario() -> None:
        broker = filled(6)
        async with consuming(broker) as (consumer, _):
            async for message in consumer:
                if message.body == b"2":
                    break
            assert bodies(await polled(consumer, 3)) == [b"3", b"4", b"5"]

    run(scenario)


def test_iteration_ends_when_the_consumer_is_closed() -> None:
    async def scenario() -> None:
        broker = filled(1)
        async with consuming(broker) as (consumer, _):
            seen: list[bytes] = []

            async def iterate() -> None:
                async for message in consumer:
                    seen.append(message.body)  # noqa: PERF401 - other code reads what was seen meanwhile

            task = asyncio.ensure_future(iterate())
            await until(lambda: len(seen) == 1)
            await consumer.close()
            await task
            with pytest.raises(ClosedError):
                await consumer.poll()
            with pytest.raises(ClosedError, match="create a new one"):
                await consumer.start()

    run(scenario)


def test_only_explicit_commits_commit_without_auto_commit() -> None:
    async def scenario() -> None:
        broker = filled(10)
        options = LitePullOptions(consume_from=ConsumeFrom.FIRST, commit_interval_ms=20, auto_commit=False)
        async with consuming(broker, options) as (consumer, _):
            await polled(consumer, 4)
            await consumer.commit()
            assert (broker.committed, await consumer.committed(QUEUE)) == (4, 4)
            await polled(consumer, 3)
            await asyncio.sleep(0.1)
            assert broker.committed == 4
            await consumer.commit({QUEUE: 2})
            assert broker.committed == 2
        assert broker.committed == 2

    run(scenario)


def test_rejected_commit_is_raised() -> None:
    async def scenario() -> None:
        broker = filled(3)
        async with consuming(broker) as (consumer, _):
            await polled(consumer, 3)
            broker.scripts[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda _: Response(ResponseCode.SYSTEM_ERROR, "full")
            with pytest.raises(RefusedError, match="full"):
                await consumer.commit()

    run(scenario)


@pytest.mark.parametrize("assigned", [False, True])
def test_seek_moves_backward_and_forward(assigned: bool) -> None:
    async def scenario() -> None:
        broker = filled(50)
        async with consuming(broker, assigned=assigned) as (consumer, _):
            assert bodies(await polled(consumer, 3)) == [b"0", b"1", b"2"]
            await consumer.seek(QUEUE, 40)
            assert bodies(await polled(consumer, 2)) == [b"40", b"41"]
            await consumer.seek_to_begin(QUEUE)
            assert bodies(await polled(consumer, 1)) == [b"0"]
            await consumer.seek_to_end(QUEUE)
            assert await consumer.poll(200) == []
            broker.add("T", b"new")
            await consumer.seek(QUEUE, 49)
            assert bodies(await polled(consumer, 2)) == [b"49", b"new"]
            with pytest.raises(ValueError, match="not assigned to this consumer"):
                await consumer.seek(MessageQueue("broker-a", 1, "T"), 0)
            with pytest.raises(ValueError, match="offsets start at 0"):
                await consumer.seek(QUEUE, -1)
        assert broker.committed == 51

    run(scenario)


def test_seek_before_the_first_poll_overrides_the_committed_offset() -> None:
    async def scenario() -> None:
        broker = filled(20)
        broker.committed = 3
        async with running(broker) as (client, _):
            consumer = LitePullConsumer(client, "G", FIRST)
            consumer.assign([QUEUE])
            await consumer.seek(QUEUE, 12)
            async with consumer:
                assert bodies(await polled(consumer, 1)) == [b"12"]

    run(scenario)


def test_seek_is_not_committed_before_it_is_reached() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _):
            offsets = SeekableOffsets(BrokerOffsets(QueueCalls(client, "G")), saves=True)
            offsets.seek(QUEUE, 9)
            await offsets.save({QUEUE: 4})
            assert broker.committed is None
            assert await offsets.load(QUEUE) == 9
            await offsets.save({QUEUE: 10})
            assert broker.committed == 10

    run(scenario)


def test_paused_queue_returns_nothing_until_resumed() -> None:
    async def scenario() -> None:
        broker = filled(200)
        async with consuming(broker) as (consumer, _):
            await polled(consumer, 1)
            consumer.pause(QUEUE)
            assert consumer.paused == {QUEUE}
            assert await consumer.poll(100) == []
            pulls = len(broker.asked(RequestCode.PULL_MESSAGE))
            assert await consumer.poll(100) == []
            assert len(broker.asked(RequestCode.PULL_MESSAGE)) - pulls <= 1
            waiting = asyncio.ensure_future(polled(consumer, 199))
            await asyncio.sleep(0.02)
            consumer.resume(QUEUE)
            assert bodies(await waiting) == [b"%d" % number for number in range(1, 200)]

    run(scenario)


def test_pulls_respect_the_cache_limit() -> None:
    async def scenario() -> None:
        broker = filled(1_000)
        options = LitePullOptions(consume_from=ConsumeFrom.FIRST, max_cached_in_all=100)
        async with consuming(broker, options) as (consumer, _):
            await polled(consumer, 10)
            await until(lambda: len(consumer._buffer) >= 100)
            await asyncio.sleep(0.1)
            assert len(consumer._buffer) < 100 + options.pull_batch
            assert len(broker.asked(RequestCode.PULL_MESSAGE)) <= 5
            # It goes on as soon as some are done.
            assert len(await polled(consumer, 990)) == 990

    run(scenario)


def test_administrators_reset_moves_the_consumer() -> None:
    async def scenario() -> None:
        broker = filled(30)
        async with consuming(broker) as (consumer, _):
            await polled(consumer, 20)
            consumer.reset_offsets({QUEUE: 5})
            await until(lambda: broker.committed == 5)
            messages = await polled(consumer, 1)
            while messages[-1].body != b"5":
                messages = await polled(consumer, 1)
            assert bodies(await polled(consumer, 2)) == [b"6", b"7"]

    run(scenario)


def test_reset_of_another_members_queue_does_not_move_its_next_owner() -> None:
    async def scenario() -> None:
        broker = filled(30)
        async with running(broker) as (client, _):
            broker.members.append("0@other")
            consumer = LitePullConsumer(client, "G", FIRST)
            consumer.subscribe("T")
            async with consumer:
                # The only queue is the first member's.
                await until(lambda: client.client_id in broker.members)
                consumer.reset_offsets({QUEUE: 5})
                await client.heartbeat()
                broker.committed = 20  # by the other one, which then leaves
                broker.members.remove("0@other")
                broker.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})
                assert bodies(await polled(consumer, 2)) == [b"20", b"21"]

    run(scenario)


def test_commit_during_a_reset_does_not_undo_it() -> None:
    async def scenario() -> None:
        broker = filled(30)
        held: list[Command] = []
        take = broker.scripts[RequestCode.UPDATE_CONSUMER_OFFSET]

        def hold(command: Command) -> Response | None:
            if held:
                return take(command)
            held.append(command)
            return None

        async with consuming(broker) as (consumer, _):
            await polled(consumer, 20)
            broker.scripts[RequestCode.UPDATE_CONSUMER_OFFSET] = hold
            consumer.reset_offsets({QUEUE: 5})
            await until(lambda: bool(held))
            await consumer.commit()
            assert [command.fields["commitOffset"] for command in broker.asked(held[0].code)] == ["5"]

    run(scenario)


def test_subscribe_and_assign_are_exclusive_and_polling_needs_one() -> None:
    async def scenario() -> None:
        async with running(FakeBroker()) as (client, _):
            consumer = LitePullConsumer(client, "G")
            with pytest.raises(ClosedError, match="not been started"):
                await consumer.poll()
            async with consumer:
                with pytest.raises(ValueError, match="nothing to poll"):
                    await consumer.poll(1)
                consumer.subscribe("T")
                with pytest.raises(ValueError, match="has subscriptions"):
                    consumer.assign([QUEUE])
                with pytest.raises(ValueError, match="not be negative"):
                    await consumer.poll(-1)
            other = LitePullConsumer(client, "H")
            other.assign([])
            with pytest.raises(ValueError, match="has assigned"):
                other.subscribe("T")

    run(scenario)


def test_one_task_polls_at_a_time_and_a_cancelled_poll_loses_nothing() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with consuming(broker) as (consumer, _):
            await until(lambda: bool(consumer.assigned))
            waiting = asyncio.ensure_future(consumer.poll())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another poll is in progress"):
                await consumer.poll()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            broker.add("T", b"late")
            await consumer.seek_to_begin(QUEUE)
            assert bodies(await polled(consumer, 1)) == [b"late"]

    run(scenario)


def test_assigned_queues_change_without_disturbing_kept_ones() -> None:
    async def scenario() -> None:
        broker = filled(10)
        async with consuming(broker, assigned=True) as (consumer, _):
            assert bodies(await polled(consumer, 2)) == [b"0", b"1"]
            other = MessageQueue("broker-a", 1, "T")
            consumer.assign([QUEUE, other])
            await until(lambda: set(consumer.assigned) == {QUEUE, other})
            consumer.pause(other)  # the fake's queues all have the same messages
            messages = [m for m in await polled(consumer, 8) if m.queue == QUEUE]
            assert bodies(messages)[:1] == [b"2"]
            consumer.assign([])
            await until(lambda: consumer.assigned == [])
            assert await consumer.poll(20) == []

    run(scenario)


def test_offsets_are_found_by_time() -> None:
    async def scenario() -> None:
        broker = filled(10)

        def search(command: Command) -> Response:
            return Response(fields={"offset": "7" if command.fields["timestamp"] == "123" else "0"})

        broker.scripts[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = search
        async with consuming(broker) as (consumer, _):
            assert await consumer.offset_for_timestamp(QUEUE, 123) == 7
            assert await consumer.queues("T") == (QUEUE,)

    run(scenario)


def test_polls_rotate_among_queues() -> None:
    async def scenario() -> None:
        broker = filled(1)
        async with running(broker) as (client, _):
            calls = QueueCalls(client, "G")
            buffer = PollBuffer(100)
            consumer = LitePullConsumer(client, "G")
            consumer.subscribe("T")
            readers = [
                QueueReader(
                    MessageQueue("broker-a", number, "T"), consumer._subscriptions["T"], calls=calls,
                    offsets=BrokerOffsets(calls), options=consumer._assignment._options, retry_topic="",
                    submit=buffer.submit,
                )
                for number in range(2)
            ]  # fmt: skip
            [message] = (await calls.pull(QUEUE, 0, consumer._subscriptions["T"])).messages
            for reader in readers:
                buffer.submit(reader, [message] * 5)
            buffer.take(3)
            assert [reader.queue.queue_id for reader, _ in buffer._taken] == [0, 0, 0]
            buffer.take(3)
            assert [reader.queue.queue_id for reader, _ in buffer._taken[3:]] == [1, 1, 1]
            buffer.take(10)
            assert [reader.queue.queue_id for reader, _ in buffer._taken[6:]] == [0, 0, 1, 1]
            buffer.forget(readers[0])
            assert len(buffer) == 5
            assert buffer.finish_taken() == {readers[1]}
            assert len(buffer) == 0

    run(scenario)
