"""Back-pressure: limits of consumers, and reactions to busy brokers."""

import asyncio
import random
import threading
import zlib
from dataclasses import replace

import pytest
from delaymq.client import (
    ConsumeFrom,
    Message,
    Producer,
    PushConsumerOptions,
    ReceivedMessage,
    RefusedError,
    Retry,
    Suspend,
    decoding,
)
from delaymq.client.consumer.queues.process_queue import CacheTotal, ProcessQueue
from delaymq.client.core import queue_calls
from delaymq.client.decoding import compressed_bytes, stored_messages
from delaymq.protocol.bodies import BrokerData, MessageQueue, RouteQueues, TopicRoute
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response, request_command
from delaymq_testing.client.consuming import subscribed
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until

QUICK = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, close_timeout_ms=200, local_retry_ms=20)


def pulls(broker: FakeBroker) -> list[Command]:
    return [each for each in broker.asked(RequestCode.PULL_MESSAGE) if each.fields["topic"] == "T"]


# All queues together.


def message(offset: int, size_bytes: int) -> ReceivedMessage:
    return ReceivedMessage(
        topic="T", body=b"x" * size_bytes, queue=MessageQueue("b", 0, "T"), queue_offset=offset, physical_offset=0,
        message_id="", offset_message_id="", properties={}, born_timestamp_ms=0, store_timestamp_ms=0,
        reconsume_times=0,
    )  # fmt: skip


def test_all_queues_are_full_together_until_a_quarter_is_free() -> None:
    woken: list[int] = []
    total = CacheTotal(100, 1_000_000, lambda: woken.append(total.count))
    queues = [ProcessQueue(0, total) for _ in range(4)]
    for queue in queues[:3]:
        queue.add([message(offset, 10) for offset in range(30)], 30)
    assert (total.count, total.size_bytes, total.is_full) == (90, 900, False)
    queues[3].add([message(offset, 10) for offset in range(10)], 10)
    assert total.is_full
    for offset in range(24):
        queues[0].finish([offset])
    assert (total.count, total.is_full, woken) == (76, True, [])
    queues[0].finish([24])
    queues[0].finish([24])  # done already
    assert (total.count, total.is_full, woken) == (75, False, [75])


def test_cache_of_a_dropped_queue_no_longer_counts() -> None:
    woken: list[int] = []
    total = CacheTotal(1_000, 100, lambda: woken.append(total.count))
    queue, other = ProcessQueue(0, total), ProcessQueue(0, total)
    queue.add([message(0, 60)], 1)
    other.add([message(0, 60)], 1)
    assert total.is_full
    queue.release()
    queue.release()
    queue.finish([0])
    assert (total.count, total.size_bytes, woken) == (1, 60, [1])


def test_nothing_is_pulled_while_all_queues_together_are_full() -> None:
    async def scenario() -> None:
        brokers = [FakeBroker(f"broker-{letter}") for letter in "abcd"]
        for broker in brokers:
            for _ in range(32):
                broker.add("T", b"x")
        go_on, seen = asyncio.Event(), 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal seen
            await go_on.wait()
            seen += 1

        options = replace(QUICK, max_cached_messages_in_all=40, pull_batch=8, max_cached_messages=16)
        async with running(*brokers) as (client, _), subscribed(client, handle, options) as consumer:
            await until(lambda: consumer.stats().cached_messages >= 40)
            for _ in range(10):
                await client.request(brokers[0].address, Command(RequestCode.GET_BROKER_CONFIG))
            # Each of four readers may have had one pull of 32 under way: the fake's batches.
            assert consumer.stats().cached_messages < 40 + 4 * 32
            go_on.set()
            await until(lambda: seen == 4 * 32)

    run(scenario)


# Brokers that are busy.


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL])
def test_pull_waits_as_long_as_rocketmqs_when_a_broker_is_busy(
    code: ResponseCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    pause = asyncio.sleep

    async def slept(seconds: float) -> None:
        pauses.append(seconds)
        await pause(0)

    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"x")
        plain = broker.scripts[RequestCode.PULL_MESSAGE]
        refusals = iter([Response(code, "busy")] * 3)

        def answer(command: Command) -> Response | None:
            return next(refusals, None) or plain(command)

        broker.scripts[RequestCode.PULL_MESSAGE] = answer
        handled = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            handled.set()

        monkeypatch.setattr("asyncio.sleep", slept)
        async with running(broker) as (client, _), subscribed(client, handle, QUICK):
            await handled.wait()
        monkeypatch.undo()
        wanted = 3.0 if code == ResponseCode.SYSTEM_BUSY else 0.02
        assert pauses.count(wanted) >= 3

    run(scenario)


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL])
def test_send_rejected_by_a_busy_broker_is_not_retried(code: ResponseCode) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        remark = "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while"
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda command: Response(code, remark)
        async with running(broker) as (client, _), Producer(client) as producer:
            with pytest.raises(RefusedError, match="PCBUSY_CLEAN_QUEUE") as refused:
                await producer.send(Message(topic="T", body=b"x"))
            assert refused.value.code == code
            assert len(broker.sent()) == 1

    run(scenario)


# Slaves.


def test_pulls_follow_the_suggested_broker_and_return() -> None:
    async def scenario() -> None:
        master, slave = FakeBroker(), FakeBroker()
        suggested = {"suggestWhichBrokerId": "1"}
        for broker in (master, slave):
            for number in range(96):
                broker.add("T", b"%d" % number)
        plain = master.scripts[RequestCode.PULL_MESSAGE]

        def to_the_slave(command: Command) -> Response | None:
            response = plain(command)
            if response is not None and command.fields["queueOffset"] == "0":
                response.fields |= suggested
            return response

        master.scripts[RequestCode.PULL_MESSAGE] = to_the_slave
        await slave.start()
        got: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.queue_offset)

        async with running(master) as (client, name_server):

            def route(command: Command) -> Response:
                topic_route = TopicRoute(
                    broker_datas=[BrokerData("broker-a", "C", {0: master.address, 1: slave.address})],
                    queue_datas=[RouteQueues("broker-a", 1, 1, 6)],
                )
                return Response(body=topic_route.encode())

            name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = route
            async with subscribed(client, handle, QUICK):
                await until(lambda: len(got) == 96)
                await until(lambda: len(pulls(master)) == 3)
                assert [each.fields["queueOffset"] for each in pulls(slave)] == ["32"]
                assert [each.fields["queueOffset"] for each in pulls(master)] == ["0", "64", "96"]
        await slave.stop()

    run(scenario)


# Bodies that are compressed.


@pytest.fixture
def inflating_threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the compressed bodies of each pull were decompressed in the loop's own thread."""
    found: list[bool] = []
    inflate = decoding.inflated

    def noted(*arguments: object, **options: object) -> object:
        found.append(threading.current_thread() is threading.main_thread())
        return inflate(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(queue_calls, "inflated", noted)
    return found


@pytest.mark.parametrize("is_large", [True, False])
def test_large_compressed_bodies_are_inflated_outside_the_loop(is_large: bool, inflating_threads: list[bool]) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        body = random.Random(1).randbytes(20_000 if is_large else 1_000)
        for _ in range(3):
            broker.add("T", zlib.compress(body), sys_flag=1)
        broker.add("T", b"plain " * 20_000)
        got: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        async with running(broker) as (client, _), subscribed(client, handle, QUICK):
            await until(lambda: len(got) == 4)
        assert got.count(body) == 3
        assert inflating_threads == [not is_large]

    run(scenario)


def test_only_compressed_bodies_count_as_compressed() -> None:
    broker = FakeBroker()
    broker.add("T", b"x" * 100, sys_flag=1)
    broker.add("T", b"y" * 100)
    packed, plain = broker.records
    assert compressed_bytes(stored_messages(packed + plain, "b")) == 100
    assert compressed_bytes(stored_messages(plain + packed + packed, "b")) == 200
    assert compressed_bytes([]) == 0


# How a message comes again.


def test_handler_chooses_retry_level_or_dead_letter() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        answers: dict[bytes, Retry | Suspend] = {b"0": Retry(5), b"1": Retry(-1), b"2": Suspend(50)}
        for body in answers:
            broker.add("T", body)

        async def handle(message: ReceivedMessage) -> Retry | Suspend:
            return answers[message.body]

        async with running(broker) as (client, _), subscribed(client, handle, replace(QUICK, retry_delay_level=2)):
            await until(lambda: len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 3)
        asked = {
            int(each.fields["offset"]) // 1_000: (each.fields["delayLevel"], each.fields["maxReconsumeTimes"])
            for each in broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)
        }
        assert asked == {0: ("5", "16"), 1: ("2", "0"), 2: ("2", "16")}

    run(scenario)


def test_ordered_queue_waits_as_its_handler_requests() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"0")
        broker.add("T", b"1")
        got: list[tuple[bytes, int]] = []

        async def handle(message: ReceivedMessage) -> Suspend | None:
            got.append((message.body, message.reconsume_times))
            return Suspend(10) if message.reconsume_times < 2 and message.body == b"0" else None

        # Without what the handler says it would not come again within the test's limit.
        options = replace(QUICK, ordered=True, local_retry_ms=600_000)
        async with running(broker) as (client, _), subscribed(client, handle, options):
            await until(lambda: len(got) == 4)
        assert got == [(b"0", 0), (b"0", 1), (b"0", 2), (b"1", 0)]

    run(scenario)


@pytest.mark.parametrize("level", [0, -2])
def test_retry_has_a_level(level: int) -> None:
    with pytest.raises(ValueError, match="the delay level of a retry must be 1 or more"):
        Retry(level)


@pytest.mark.parametrize("pause_ms", [9, 30_001])
def test_queue_suspension_is_limited_as_in_rocketmq(pause_ms: int) -> None:
    with pytest.raises(ValueError, match="suspended for 10 to 30000 ms"):
        Suspend(pause_ms)


def test_cancelled_wait_for_a_broker_that_does_not_read_leaves_other_requests_open() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            await producer.send(Message(topic="T", body=b"x"))
            for peer in broker.connections:
                peer._transport.pause_reading()  # as a peer that hangs
            connection = await client.network.connection(broker.address)
            first = connection.start_request(request_command(RequestCode.GET_MAX_OFFSET))
            while not connection.is_behind:
                connection.send(bytes(1 << 20))
                await asyncio.sleep(0)
            # A command that was sent to another server before has the number of a request.
            repeated = request_command(RequestCode.GET_MAX_OFFSET)
            [repeated.opaque] = connection._requests._open
            waiting = asyncio.ensure_future(client.network.invoke(broker.address, repeated, 60_000))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert connection.open_requests == 1
            for peer in broker.connections:
                peer.abort()
            await asyncio.gather(first, return_exceptions=True)

    run(scenario)
