"""Handlers against a scripted broker: accepted callables, results, and log lines."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from delaymq.client import BatchPushConsumer, Client, ClosedError, MessageModel, Outcome, ReceivedMessage
from delaymq.client.core import background
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq_testing.client.consuming import QUICK, subscribed
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until

# What a handler may be.


class Callee:
    async def __call__(self, message: ReceivedMessage) -> None:
        pass

    async def method(self, message: ReceivedMessage) -> None:
        pass

    def plain(self, message: ReceivedMessage) -> None:
        pass


async def with_argument(argument: int, message: ReceivedMessage) -> None:
    pass


def decorated(handler: Callable[[ReceivedMessage], Awaitable[None]]) -> Callable[[ReceivedMessage], Awaitable[None]]:
    @functools.wraps(handler)
    def wrapper(message: ReceivedMessage) -> Awaitable[None]:
        return handler(message)

    return wrapper


@pytest.mark.parametrize(
    "handler", [Callee(), Callee().method, functools.partial(with_argument, 1), decorated(Callee().method)]
)
def test_handler_is_any_callable_returning_a_coroutine(handler: object) -> None:
    subscribed(Client(None), handler)


@pytest.mark.parametrize("handler", [Callee().plain, lambda message: None])
def test_plain_function_is_rejected_with_advice(handler: object) -> None:
    with pytest.raises(TypeError, match=r"is a plain function: use `async def`, and `await asyncio.to_thread"):
        subscribed(Client(None), handler)


def test_non_callable_is_rejected() -> None:
    with pytest.raises(TypeError, match="must be a coroutine function"):
        subscribed(Client(None), "handle")


def test_list_handlers_need_a_batch_consumer() -> None:
    with pytest.raises(ValueError, match="batch=2 requires a BatchPushConsumer"):
        subscribed(Client(None), Callee(), replace(QUICK, batch=2))


# What it may answer.


def test_invalid_result_counts_as_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"0")

        async def handle(message: ReceivedMessage) -> bool:
            return True

        async with running(broker) as (client, _), subscribed(client, handle):
            await until(lambda: broker.committed == 1)
        assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1

    run(scenario)
    assert "a handler must return None, an Outcome, a Retry or a Suspend, not True" in caplog.text


@pytest.mark.parametrize("answer", [4, -1, True, "all"])
def test_batch_cannot_be_done_beyond_its_end(answer: object, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(3):
            broker.add("T", b"%d" % number)

        async def handle(messages: list[ReceivedMessage]) -> object:
            return answer

        async with running(broker) as (client, _):
            consumer = BatchPushConsumer(client, "G", handle, replace(QUICK, batch=3))  # type: ignore[arg-type]
            consumer.subscribe("T")
            async with consumer:
                await until(lambda: broker.committed == 3)
        assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 3

    run(scenario)
    assert f"the number of consumed messages, not {answer!r}" in caplog.text


def test_cancellation_inside_a_handler_is_its_failure_and_ends_no_worker() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(5):
            broker.add("T", b"%d" % number)

        async def handle(message: ReceivedMessage) -> None:
            other = asyncio.ensure_future(asyncio.sleep(60))
            other.cancel()
            await other

        async with (
            running(broker) as (client, _),
            subscribed(client, handle, replace(QUICK, concurrency=1)) as consumer,
        ):
            await until(lambda: broker.committed == 5)
            assert consumer.stats().topics["T"].failed == 5
        assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 5

    run(scenario)


def test_failure_is_logged_with_id_keys_and_topic_but_not_the_body(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        broker = FakeBroker()
        for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
            broker.scripts[code] = lambda _: Response(ResponseCode.SYSTEM_BUSY, "no")
        broker.add("T", b"the secret", KEYS="order-7 customer-3")
        attempts = 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise ValueError("of the handler")

        async with running(broker) as (client, _), subscribed(client, handle):
            await until(lambda: broker.committed == 1)

    run(scenario)
    assert "the handler failed on message ID0 keys order-7 customer-3 of T" in caplog.text
    assert "ValueError: of the handler" in caplog.text
    assert "message ID0 keys order-7 customer-3 of T could not be sent back" in caplog.text
    assert "secret" not in caplog.text


def test_message_rejected_by_all_brokers_is_retried_locally_with_its_attempts() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
            broker.scripts[code] = lambda _: Response(ResponseCode.SYSTEM_BUSY, "no")
        broker.add("T", b"0")
        times: list[int] = []

        async def fail_twice(message: ReceivedMessage) -> Outcome | None:
            times.append(message.reconsume_times)
            return Outcome.RETRY if len(times) < 3 else None

        async with running(broker) as (client, _), subscribed(client, fail_twice):
            await until(lambda: broker.committed == 1)
        assert times == [0, 1, 2]

    run(scenario)


# How long it may take.


def test_timed_out_message_is_sent_back_and_its_late_success_ignored(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"slow")
        end = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await end.wait()

        async with (
            running(broker) as (client, _),
            subscribed(client, handle, replace(QUICK, consume_timeout_ms=60)) as consumer,
        ):
            await until(lambda: broker.committed == 1)
            assert consumer.stats().running == 1
            end.set()
            await until(lambda: consumer.stats().running == 0)
            assert (consumer.stats().topics["T"].consumed, consumer.stats().topics["T"].failed) == (0, 1)
        assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1

    run(scenario)
    assert "the handler of message ID0 of T has been running for more than 60 ms" in caplog.text
    assert "the handler finished too late for message ID0 of T" in caplog.text


def test_timed_out_message_stays_with_its_handler_while_no_broker_accepts_it() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
            broker.scripts[code] = lambda _: Response(ResponseCode.SYSTEM_BUSY, "no")
        broker.add("T", b"slow")
        end = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await end.wait()

        async with (
            running(broker) as (client, _),
            subscribed(client, handle, replace(QUICK, consume_timeout_ms=60)) as consumer,
        ):
            await until(lambda: len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) >= 2)
            assert broker.committed in (None, 0)
            end.set()
            await until(lambda: broker.committed == 1)
            assert (consumer.stats().topics["T"].consumed, consumer.stats().topics["T"].failed) == (1, 0)

    run(scenario)


def test_message_finished_during_send_backs_is_not_sent_back() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for body in (b"0", b"1"):
            broker.add("T", body)
        ends = [asyncio.Event(), asyncio.Event()]
        sent_back: list[int] = []

        def release_the_other(command: Command) -> Response | None:
            number = int(command.fields["offset"]) // 1000
            sent_back.append(number)
            ends[1 - number].set()
            return None  # its copy is sent instead, after a while

        async def handle(message: ReceivedMessage) -> None:
            await ends[int(message.body)].wait()

        broker.scripts[RequestCode.CONSUMER_SEND_MSG_BACK] = release_the_other
        options = replace(QUICK, consume_timeout_ms=60)
        async with running(broker) as (client, _), subscribed(client, handle, options) as consumer:
            await until(lambda: broker.committed == 2)
            assert (consumer.stats().topics["T"].consumed, consumer.stats().topics["T"].failed) == (1, 1)
        assert len(sent_back) == 1

    run(scenario)


def test_worker_survives_any_exception_of_a_handler() -> None:
    class NoException(BaseException):
        pass

    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"bad")
        broker.add("T", b"good")
        tries: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            tries.append(message.body)
            if tries == [b"bad"]:
                raise NoException

        options = replace(QUICK, ordered=True, concurrency=1)
        async with running(broker) as (client, _), subscribed(client, handle, options):
            await until(lambda: broker.committed == 2)
        assert tries == [b"bad", b"bad", b"good"]

    run(scenario)


def test_timed_out_message_does_not_block_the_offset_in_broadcasting(tmp_path: object) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"slow")

        async def handle(message: ReceivedMessage) -> None:
            await asyncio.Event().wait()

        path = tmp_path / "offsets.json"  # type: ignore[operator]
        options = replace(QUICK, consume_timeout_ms=60, model=MessageModel.BROADCASTING, offsets_path=path)
        async with running(broker) as (client, _), subscribed(client, handle, options):
            await until(lambda: path.exists() and b":1}" in path.read_bytes())
        assert broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK) == []

    run(scenario)


# How much is held.


def test_queue_with_a_backlog_does_not_block_others() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(300):
            broker.add("T", b"%d" % number)
        order: list[bytes] = []
        pull = broker.scripts[RequestCode.PULL_MESSAGE]
        may_pull_second = asyncio.Event()

        def second_later(command: Command) -> Response | None:
            if command.fields["queueId"] == "1" and not may_pull_second.is_set():
                return Response(
                    ResponseCode.PULL_NOT_FOUND,
                    fields={"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "0", "nextBeginOffset": "0"},
                )
            return pull(command)

        broker.scripts[RequestCode.PULL_MESSAGE] = second_later
        release = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await release.wait()
            order.append(message.body)

        async with (
            running(broker, queues=2) as (client, _),
            subscribed(client, handle, replace(QUICK, concurrency=1)) as consumer,
        ):
            await until(lambda: consumer.stats().cached_messages == 300)
            may_pull_second.set()
            await until(lambda: consumer.stats().cached_messages == 600)
            release.set()
            await until(lambda: len(order) == 600)
        # Both queues of the fake have the same messages: they take turns as soon as both have some.
        assert len(set(order[:40])) <= 21

    run(scenario)


def test_topic_limit_is_shared_by_its_queues() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(300):
            broker.add("T", b"%d" % number)

        async def hang(message: ReceivedMessage) -> None:
            await asyncio.Event().wait()

        options = replace(QUICK, max_cached_messages_of_topic=100, close_timeout_ms=10)
        async with running(broker, queues=2) as (client, _), subscribed(client, hang, options) as consumer:
            await until(lambda: consumer.stats().cached_messages >= 100)
            await asyncio.sleep(0.05)
            # A pull brings at most 32 more than 50 that are allowed for each queue.
            assert [each.cached_messages for each in consumer.stats().queues if each.queue.topic == "T"] == [64, 64]

    run(scenario)


def test_closed_consumer_cannot_be_restarted() -> None:
    async def scenario() -> None:
        async with running(FakeBroker()) as (client, _):
            consumer = subscribed(client, Callee())
            async with consumer:
                pass
            with pytest.raises(ClosedError, match="create a new one"):
                await consumer.start()

    run(scenario)


def test_handler_ignoring_cancellation_does_not_block_the_close(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "CANCEL_LIMIT_S", 0.05)

    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"0")
        end, ended = asyncio.Event(), asyncio.Event()
        begun = asyncio.Event()

        async def stubborn(message: ReceivedMessage) -> None:
            begun.set()
            while not end.is_set():
                with suppress(asyncio.CancelledError):
                    await end.wait()
            ended.set()

        async with running(broker) as (client, _):
            async with subscribed(client, stubborn, replace(QUICK, close_timeout_ms=50)):
                await begun.wait()
            assert not ended.is_set()
            end.set()
            await ended.wait()
            await asyncio.sleep(0.01)

    run(scenario)
    assert "1 tasks ignore their cancellation" in caplog.text
