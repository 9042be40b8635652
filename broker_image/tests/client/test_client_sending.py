"""Sends to slow, full, unavailable or many brokers: scripted brokers, and single components."""

import asyncio
import logging
import zlib
from collections.abc import Iterator
from datetime import timedelta

import pytest
from delaymq.client import (
    Client,
    ClientOptions,
    ClosedError,
    IllegalMessageError,
    Message,
    MessageQueue,
    NoRouteError,
    NoSuchDelayError,
    Producer,
    ProducerOptions,
    SendError,
    SendStatus,
    split_batches,
)
from delaymq.client.core.broker_faults import BrokerFaults
from delaymq.client.core.routes import QueueRound, queue_for_key
from delaymq.client.core.shared_calls import SharedCalls
from delaymq.client.producer.in_flight import InFlight
from delaymq.client.sending.batches import batch_body, batched_bytes
from delaymq.message.properties import parse_properties
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq_testing.client.fake_peer import FakeBroker, FakeNameServer, run, running, until

MESSAGE = Message(topic="T", body=b"hello")
LATENCIES_MS = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
PAUSES_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
ONLY_FAILURES = ProducerOptions(latency_faults=True, fault_latencies_ms=(29_000,), fault_pauses_ms=(600_000,))
"""On a machine that stalls for a second, only failures count."""


def queues(brokers: int, count: int = 1) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(f"b{broker}", number, "T") for broker in range(brokers) for number in range(count))


def faults() -> BrokerFaults:
    return BrokerFaults(LATENCIES_MS, PAUSES_MS, 30_000)


@pytest.mark.parametrize(
    ("latency_ms", "pause_ms"),
    [(0, 0), (49, 0), (100, 0), (549, 0), (550, 30_000), (999, 30_000), (1_000, 60_000), (3_000, 180_000),
     (14_999, 180_000), (15_000, 600_000), (99_999, 600_000)],
)  # fmt: skip
def test_slow_broker_is_avoided_as_long_as_the_table_says(latency_ms: int, pause_ms: int) -> None:
    seen = faults()
    seen.answered("b0", latency_ms, 1_000)
    assert seen.is_usable("b0", 1_000 + pause_ms)
    if pause_ms:
        assert not seen.is_usable("b0", 1_000 + pause_ms - 1)


def test_failure_counts_as_thirty_seconds_until_a_response() -> None:
    seen = faults()
    seen.failed("b0", 3, 0)
    assert not seen.is_usable("b0", 599_999)
    assert seen.is_usable("b0", 600_000)
    seen.failed("b0", 3, 0)
    seen.answered("b0", 3, 1)
    assert seen.is_usable("b0", 1)


def test_better_half_of_bad_brokers_is_rotated() -> None:
    seen = faults()
    for number, latency_ms in enumerate((900, 600, 2_500, 700)):
        seen.answered(f"b{number}", latency_ms, 0)
    names = ["b0", "b1", "b2", "b3"]
    assert {seen.least_bad(names, 1) for _ in range(4)} == {"b1", "b3"}
    assert seen.least_bad(["b2"], 1) == "b2"


def test_rotation_skips_unusable_brokers_and_falls_back_to_the_least_bad() -> None:
    seen, rounds, all_queues = faults(), QueueRound(), queues(3, 2)
    seen.failed("b1", 5, 0)
    chosen = {rounds.choose(all_queues, None, seen, 1).broker_name for _ in range(12)}
    assert chosen == {"b0", "b2"}
    seen.answered("b0", 700, 0)
    seen.answered("b2", 1_500, 0)
    # b1 failed, but fast: it would be the fastest of the three, so only the isolated one is avoided.
    assert rounds.choose(all_queues, "b1", seen, 1).broker_name == "b0"


def test_key_has_the_queue_of_rocketmqs_selector() -> None:
    # In Java "hello".hashCode() is 99162322, "".hashCode() 0, "polygenelubricants".hashCode() the smallest integer.
    all_queues = queues(1, 7)
    assert queue_for_key(all_queues, "hello").queue_id == 99162322 % 7
    assert queue_for_key(all_queues, "").queue_id == 0
    assert queue_for_key(all_queues, "polygenelubricants").queue_id == 2147483648 % 7
    assert len({queue_for_key(all_queues, f"key {number}") for number in range(100)}) == 7


def test_messages_of_a_key_stay_in_one_queue_across_attempts() -> None:
    async def scenario() -> None:
        brokers = FakeBroker("broker-a"), FakeBroker("broker-b")
        for broker in brokers:
            refusals = iter([ResponseCode.SYSTEM_ERROR])

            def answer(
                command: Command, broker: FakeBroker = broker, refusals: Iterator[ResponseCode] = refusals
            ) -> Response | None:
                code = next(refusals, None)
                return broker.send_answer(command) if code is None else Response(code, "once")

            broker.scripts[RequestCode.SEND_MESSAGE_V2] = answer
        async with running(*brokers, queues=4) as (client, _), Producer(client) as producer:
            for key in ("a", "b", "c", "d"):
                results = [await producer.send(MESSAGE, ordering_key=key) for _ in range(3)]
                expected = queue_for_key(await producer.queues("T"), key)
                assert {result.queue for result in results} == {expected}
            await producer.send_oneway(MESSAGE, ordering_key="a")
            batched = await producer.send_batch([MESSAGE, MESSAGE], ordering_key="a")
            assert batched.queue == queue_for_key(await producer.queues("T"), "a")
            with pytest.raises(ValueError, match="not both"):
                await producer.send(MESSAGE, ordering_key="a", queue=batched.queue)

    run(scenario)


def test_failed_broker_gets_no_sends_with_latency_faults_enabled() -> None:
    async def scenario() -> None:
        brokers = FakeBroker("broker-a"), FakeBroker("broker-b")
        brokers[0].scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: Response(ResponseCode.SYSTEM_ERROR, "no")
        async with running(*brokers, queues=2) as (client, _):
            async with Producer(client, options=ONLY_FAILURES) as producer:
                for _ in range(12):
                    assert (await producer.send(MESSAGE)).queue.broker_name == "broker-b"
            assert len(brokers[0].sent()) <= 1
            for broker in brokers:
                broker.requests.clear()
            async with Producer(client) as producer:
                for _ in range(12):
                    await producer.send(MESSAGE)
            # Without them it is tried every time that its turn comes.
            assert len(brokers[0].sent()) >= 4

    run(scenario)


def test_errors_common_to_all_brokers_do_not_isolate_a_broker() -> None:
    async def scenario() -> None:
        broker = FakeBroker("broker-a")
        other = FakeBroker("broker-b")
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: Response(ResponseCode.MESSAGE_ILLEGAL, "no")
        async with running(broker, other) as (client, _), Producer(client, options=ONLY_FAILURES) as producer:
            sends = [producer.send(MESSAGE) for _ in range(8)]
            results = await asyncio.gather(*sends, return_exceptions=True)
        assert sum(isinstance(result, Exception) for result in results) == 4

    run(scenario)


def test_timed_out_send_is_not_resent() -> None:
    async def scenario() -> None:
        brokers = FakeBroker("broker-a"), FakeBroker("broker-b")
        for broker in brokers:
            broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: None
        async with running(*brokers) as (client, _), Producer(client) as producer:
            for timeout_ms in range(20, 40):
                with pytest.raises(SendError, match="after 1 attempt"):
                    await producer.send(MESSAGE, timeout_ms=timeout_ms)
        assert sum(len(broker.sent()) for broker in brokers) <= 20

    run(scenario)


@pytest.mark.parametrize(("retry_unsafe", "sent"), [(False, 1), (True, 3)])
def test_stored_message_without_durability_is_resent_only_on_request(retry_unsafe: bool, sent: int) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda command: Response(
            ResponseCode.FLUSH_DISK_TIMEOUT, fields=broker.send_answer(command).fields
        )
        options = ProducerOptions(retry_unsafe=retry_unsafe)
        async with running(broker) as (client, _), Producer(client, options=options) as producer:
            assert (await producer.send(MESSAGE)).status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(broker.sent()) == sent

    run(scenario)


def test_sends_beyond_the_limit_wait_and_time_out() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: None
        options = ProducerOptions(max_unanswered_sends=2)
        async with running(broker) as (client, _), Producer(client, options=options) as producer:
            await producer.queues("T")
            under_way = [asyncio.ensure_future(producer.send(MESSAGE)) for _ in range(2)]
            await until(lambda: len(broker.sent()) == 2)
            with pytest.raises(SendError, match=r"2 sends are in progress and none finished within 100 ms"):
                await producer.send(MESSAGE, timeout_ms=100)
            waiting = asyncio.ensure_future(producer.send(MESSAGE))
            await asyncio.sleep(0.05)
            assert len(broker.sent()) == 2
            broker.scripts[RequestCode.SEND_MESSAGE_V2] = broker.send_answer
            under_way[0].cancel()
            assert (await waiting).status is SendStatus.OK
            under_way[1].cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    run(scenario)


def test_limit_counts_bytes_and_admits_one_oversized_message_alone() -> None:
    async def scenario() -> None:
        room = InFlight(10, 100)
        assert room.try_enter(60)
        assert not room.try_enter(60)
        order: list[str] = []

        async def enter(name: str, size_bytes: int) -> None:
            await room.enter(size_bytes)
            order.append(name)

        giant = asyncio.ensure_future(enter("giant", 500))
        small = asyncio.ensure_future(enter("small", 1))
        await asyncio.sleep(0)
        assert room.waiting == 2  # who comes later does not overtake
        room.leave(60)
        await giant
        assert order == ["giant"]
        room.leave(500)
        await small
        room.leave(1)
        assert len(room) == 0

    run(scenario)


def test_cancelled_waiter_passes_its_turn_on() -> None:
    async def scenario() -> None:
        room = InFlight(1, 100)
        assert room.try_enter(1)
        first, second = (asyncio.ensure_future(room.enter(1)) for _ in range(2))
        await asyncio.sleep(0)
        room.leave(1)  # lets the first in …
        first.cancel()  # … which is cancelled before it runs
        await second
        assert len(room) == 1
        third = asyncio.ensure_future(room.enter(1))
        await asyncio.sleep(0)
        third.cancel()
        await asyncio.gather(first, third, return_exceptions=True)
        room.leave(1)
        assert room.try_enter(1)

    run(scenario)


def test_close_waits_for_active_sends_and_rejects_waiting_ones() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: None
        async with running(broker) as (client, _):
            producer = Producer(client, "P", ProducerOptions(max_unanswered_sends=1))
            await producer.start()
            under_way = asyncio.ensure_future(producer.send(MESSAGE))
            await until(lambda: len(broker.sent()) == 1)
            waiting = asyncio.ensure_future(producer.send(MESSAGE))
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(producer.close())
            with pytest.raises(ClosedError):
                await waiting
            assert not closing.done()
            assert broker.asked(RequestCode.UNREGISTER_CLIENT) == []
            under_way.cancel()
            await closing
            assert len(broker.asked(RequestCode.UNREGISTER_CLIENT)) == 1

    run(scenario)


def test_group_is_registered_while_one_of_its_producers_is_open() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client, "P") as first:
            async with Producer(client, "P") as second:
                await first.send(MESSAGE)
                await second.send(MESSAGE)
            assert broker.asked(RequestCode.UNREGISTER_CLIENT) == []
        assert len(broker.asked(RequestCode.UNREGISTER_CLIENT)) == 1

    run(scenario)


def test_broker_that_does_not_read_uses_bounded_memory() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        options = ProducerOptions(compress_above_bytes=1 << 30, send_timeout_ms=300)
        async with running(broker) as (client, _), Producer(client, options=options) as producer:
            await producer.send(MESSAGE, timeout_ms=15_000)
            for peer in broker.connections:
                peer._transport.pause_reading()  # as a peer that hangs
            connection = await client.network.connection(broker.address)
            large = Message(topic="T", body=bytes(256 * 1024))
            sends = [asyncio.ensure_future(producer.send(large, timeout_ms=60_000)) for _ in range(200)]
            await until(lambda: connection.is_behind)
            await asyncio.sleep(0.1)
            assert connection.is_behind
            assert connection._transport.get_write_buffer_size() < 2 * 1024 * 1024
            with pytest.raises(SendError, match="could not be written within 300 ms"):
                await producer.send_oneway(large)
            for send in sends:
                send.cancel()
            await asyncio.gather(*sends, return_exceptions=True)
            assert connection.open_requests == 0
            for peer in broker.connections:
                peer.abort()

    run(scenario)


def test_thousand_concurrent_sends_query_the_route_once() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, name_server), Producer(client) as producer:
            await asyncio.gather(*(producer.send(MESSAGE, delay="5s") for _ in range(1_000)))
            assert len(name_server.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1
            assert len(broker.asked(RequestCode.GET_BROKER_CONFIG)) == 1
        assert len(broker.sent()) == 1_000

    run(scenario)


def test_silent_nameserver_does_not_use_up_the_sends_timeout() -> None:
    async def scenario() -> None:
        broker, silent = FakeBroker(), FakeBroker()
        silent.scripts = {RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda _: None}
        await silent.start()
        async with running(broker) as (_, name_server):
            options = ClientOptions(request_timeout_ms=2_000, connect_timeout_ms=2_000)
            client = Client([silent.address, name_server.address], options)
            async with client, Producer(client) as producer:
                # The silent one gets half of the two seconds.
                assert (await producer.send(MESSAGE, timeout_ms=15_000)).status is SendStatus.OK
                assert len(silent.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1
        await silent.stop()

    run(scenario)


def test_restarted_nameserver_does_not_hide_anothers_routes() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        forgetful = FakeNameServer(broker)
        forgetful.topics = {}
        await forgetful.start()
        async with running(broker) as (_, name_server):
            async with Client([forgetful.address, name_server.address]) as client:
                assert [queue.topic for queue in (await client.route("T")).writable] == ["T"]
                with pytest.raises(NoRouteError, match="topic Nowhere"):
                    await client.route("Nowhere")
            async with Client([forgetful.address, "127.0.0.1:1"]) as client:
                with pytest.raises(NoRouteError, match="topic T"):
                    await client.route("T")
        await forgetful.stop()

    run(scenario)


def test_shared_calls_survive_the_caller_that_started_them() -> None:
    async def scenario() -> None:
        calls: SharedCalls[str, int] = SharedCalls()
        go, made = asyncio.Event(), 0

        async def make() -> int:
            nonlocal made
            made += 1
            await go.wait()
            return made

        callers = [asyncio.ensure_future(calls.call("x", make)) for _ in range(3)]
        await asyncio.sleep(0)
        callers[0].cancel()
        await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(*callers[1:]) == [1, 1]
        assert await calls.call("x", make) == 2
        await asyncio.gather(callers[0], return_exceptions=True)
        go.clear()
        late = asyncio.ensure_future(calls.call("x", make))
        await asyncio.sleep(0)
        await calls.close()
        with pytest.raises(ClosedError):
            await late
        with pytest.raises(ClosedError):
            await calls.call("x", make)

    run(scenario)


def test_level_of_a_timedelta_is_sent_without_timed_messages() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            await producer.send(MESSAGE, delay=timedelta(seconds=10))
            with pytest.raises(NoSuchDelayError, match="has no delay level of exactly 7s"):
                await producer.send(MESSAGE, delay=timedelta(seconds=7))
            with pytest.raises(NoSuchDelayError, match="must not be negative"):
                await producer.send(MESSAGE, delay=timedelta(seconds=-1))
        assert [parse_properties(fields["i"])["DELAY"] for _, fields in broker.sent()] == ["3"]

    run(scenario)


def test_incompressible_body_is_sent_unchanged() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        noise = zlib.compress(b"".join(number.to_bytes(4, "big") for number in range(20_000)), 9)
        large = b"abc" * 100_000  # large enough to be compressed outside the loop
        async with running(broker) as (client, _), Producer(client) as producer:
            await producer.send(Message(topic="T", body=noise[:5_000]))
            await producer.send(Message(topic="T", body=large))
        [plain, packed] = broker.sent()
        if plain[1]["f"] == "0":
            assert plain[0] == noise[:5_000]
        assert len(plain[0]) <= 5_000
        assert (zlib.decompress(packed[0]), packed[1]["f"]) == (large, "1")

    run(scenario)


def test_send_is_logged_with_its_id_and_keys(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(FakeBroker()) as (client, _), Producer(client) as producer:
            result = await producer.send(Message(topic="T", body=b"", keys=("order-7", "x")))
            assert f"sent topic=T message_id={result.message_id} keys='order-7 x' status=OK" in caplog.text

    with caplog.at_level(logging.DEBUG, logger="delaymq.client.producer"):
        run(scenario)


def test_messages_are_split_into_small_enough_batches() -> None:
    messages = [
        Message(topic="TU"[number % 2], body=bytes(number * 10), tags="t" * (number % 5), keys=("k",) * (number % 3),
                properties={"p": "ü" * number})
        for number in range(1, 100)
    ]  # fmt: skip
    batches = list(split_batches(messages, max_bytes=5_000, max_messages=20))
    for batch in batches:
        body, _ = batch_body(batch, [f"{number:056X}" for number in range(len(batch))])
        assert len(body) <= sum(map(batched_bytes, batch)) <= 5_000
        assert len(batch) <= 20
        assert len({message.topic for message in batch}) == 1
    for topic in "TU":
        split = [message for batch in batches for message in batch if message.topic == topic]
        assert split == [message for message in messages if message.topic == topic]


def test_oversized_message_gets_its_own_batch_and_delays_are_rejected() -> None:
    big, small = Message(topic="T", body=bytes(300)), Message(topic="T", body=b"1")
    assert [len(batch) for batch in split_batches([small, big, small, small], max_bytes=250)] == [1, 1, 2]
    assert list(split_batches([])) == []
    with pytest.raises(IllegalMessageError, match="individually"):
        list(split_batches([Message(topic="T", body=b"", delay_level=1)]))
    with pytest.raises(ValueError, match="more than 0"):
        list(split_batches([small], max_bytes=0))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"fault_latencies_ms": (1, 2)}, "same number"),
        ({"fault_latencies_ms": (2, 1), "fault_pauses_ms": (1, 2)}, "must be in ascending order"),
        ({"fault_latencies_ms": (1, 2), "fault_pauses_ms": (1, -2)}, "cannot be negative"),
        ({"max_unanswered_sends": 0}, "max_unanswered_sends must be more than 0"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ProducerOptions(**options)  # type: ignore[arg-type]
