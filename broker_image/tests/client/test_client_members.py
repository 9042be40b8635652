"""Members' responses about themselves to a scripted broker, and rejected requests."""

import asyncio
import json
from dataclasses import replace

import pytest
from delaymq.client import (
    BatchPushConsumer,
    Client,
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    Outcome,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
    Retry,
    Suspend,
)
from delaymq.client.consumer.stats import rates
from delaymq.client.core import inbound_requests, task_stacks
from delaymq.protocol.bodies import ConsumeDirectlyResult, ConsumerRunningInfo, ConsumerStatus, MessageQueue
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq_testing.client.consuming import subscribed
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until

QUICK = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, close_timeout_ms=200, local_retry_ms=20)
QUEUE = MessageQueue("broker-a", 0, "T")


async def info_of(broker: FakeBroker, group: str = "G", stacks: str = "false") -> ConsumerRunningInfo:
    fields = {"consumerGroup": group, "clientId": "unknown", "jstackEnable": stacks}
    answer = await broker.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return ConsumerRunningInfo.decode(answer.body)


async def directly(broker: FakeBroker, **fields: str) -> ConsumeDirectlyResult:
    asked = {"consumerGroup": "G", "brokerName": "broker-a"} | fields
    answer = await broker.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, asked, broker.records[0])
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return ConsumeDirectlyResult.decode(answer.body)


def push(client: Client, handler: object, options: PushConsumerOptions = QUICK) -> PushConsumer:
    return subscribed(client, handler, options, "A || B")


def test_consumer_reports_its_queues_and_cached_messages() -> None:
    async def scenario() -> None:
        broker, go_on = FakeBroker(), asyncio.Event()
        for number in range(4):
            broker.add("T", b"x" * 600_000, TAGS="A" if number else "B")
        seen: list[ReceivedMessage] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message)
            if message.queue_offset:
                await go_on.wait()

        async with running(broker) as (client, name_server), push(client, handle, replace(QUICK, concurrency=2)):
            await until(lambda: len(seen) == 3)
            info = await info_of(broker)
            queue = info.mq_table[QUEUE]
            assert (queue.commit_offset, queue.cached_msg_count, queue.cached_msg_size_in_mi_b) == (1, 3, 1)
            assert (queue.cached_msg_min_offset, queue.cached_msg_max_offset) == (1, 3)
            assert (queue.locked, queue.droped, queue.last_lock_timestamp) == (False, False, 0)
            assert queue.last_pull_timestamp <= queue.last_consume_timestamp
            assert {each.topic: each.sub_string for each in info.subscription_set} == {"T": "A || B", "%RETRY%G": "*"}
            assert info.properties["PROP_NAMESERVER_ADDR"] == f"{name_server.address};"
            assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "2"
            assert info.properties["maxCachedMessages"] == "1000"
            assert info.status_table.keys() == {"T", "%RETRY%G"}
            assert info.status_table["T"].pull_tps == pytest.approx(0.4)  # 4 within the first 10 s
            assert info.status_table["T"].consume_ok_tps == pytest.approx(0.1)
            assert info.jstack is None
            go_on.set()

    run(scenario)


def test_ordered_consumer_reports_its_current_messages() -> None:
    async def scenario() -> None:
        broker, go_on = FakeBroker(), asyncio.Event()
        for number in range(3):
            broker.add("T", b"%d" % number, TAGS="A")
        seen: list[ReceivedMessage] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message)
            await go_on.wait()

        async with running(broker) as (client, _), push(client, handle, replace(QUICK, ordered=True)):
            await until(lambda: bool(seen))
            info = await info_of(broker)
            queue = info.mq_table[QUEUE]
            assert info.properties["PROP_CONSUMEORDERLY"] == "true"
            assert queue.locked
            assert queue.last_lock_timestamp > 0
            assert (queue.transaction_msg_count, queue.transaction_msg_min_offset) == (1, 0)
            go_on.set()

    run(scenario)


def test_stacks_show_where_tasks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        broker, waits = FakeBroker(), asyncio.Event()

        async def deep_inside() -> None:
            waits.set()
            await asyncio.Event().wait()

        async def handle(message: ReceivedMessage) -> None:
            await deep_inside()

        broker.add("T", b"x", TAGS="A")
        async with running(broker) as (client, _), push(client, handle):
            await waits.wait()
            stacks = (await info_of(broker, stacks="true")).jstack or ""
            [block] = [each for each in stacks.split("\n\n") if "deep_inside" in each]
            lines = [line.split("(")[0].split(".")[-1] for line in block.splitlines()[1:]]
            assert lines.index("deep_inside") < lines.index("handle")
            monkeypatch.setattr(task_stacks, "MAX_TASKS", 2)
            shortened = (await info_of(broker, stacks="true")).jstack or ""
            assert "more tasks" in shortened
            assert len(shortened) < len(stacks)

    run(scenario)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (None, "CR_SUCCESS"),
        (Outcome.DONE, "CR_SUCCESS"),
        (Outcome.RETRY, "CR_LATER"),
        (Retry(3), "CR_LATER"),
        (Suspend(100), "CR_LATER"),
        (RuntimeError("no paper"), "CR_THROW_EXCEPTION"),
        (asyncio.CancelledError(), "CR_THROW_EXCEPTION"),
        (7, "CR_THROW_EXCEPTION"),
    ],
)
def test_directly_consumed_message_returns_the_handlers_result(answer: object, result: str) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"x", TAGS="A")
        seen: list[ReceivedMessage] = []

        async def handle(message: ReceivedMessage) -> object:
            seen.append(message)
            if len(seen) == 1:
                return None
            if isinstance(answer, BaseException):
                raise answer
            return answer

        async with running(broker) as (client, _), push(client, handle) as consumer:
            await until(lambda: len(seen) == 1)
            told = await directly(broker)
            assert (told.consume_result, told.order, told.auto_commit) == (result, False, True)
            assert (told.remark == "RuntimeError: no paper") == isinstance(answer, RuntimeError)
            assert (seen[1].queue, seen[1].body) == (QUEUE, b"x")
            assert consumer.stats().topics["T"].consumed == 1
            assert broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK) == []

    run(scenario)


def test_batch_handler_consumes_one_message_directly() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("%RETRY%G", b"x", RETRY_TOPIC="T")
        seen: list[list[ReceivedMessage]] = []

        async def handle(messages: list[ReceivedMessage]) -> int:
            seen.append(messages)
            return 0

        async with running(broker) as (client, _):
            options = replace(QUICK, ordered=True, batch=4, consume_from=ConsumeFrom.LAST)
            consumer = BatchPushConsumer(client, "G", handle, options)
            consumer.subscribe("T")
            async with consumer:
                await until(lambda: bool(consumer.assigned))
                told = await directly(broker)
                assert (told.consume_result, told.order) == ("CR_LATER", True)
                # A message of the retry topic shows where it came from.
                assert [message.topic for message in seen[-1]] == ["T"]

    run(scenario)


def test_slow_handler_is_reported() -> None:
    async def scenario() -> None:
        broker = FakeBroker()

        async def handle(message: ReceivedMessage) -> None:
            await asyncio.Event().wait()

        options = replace(QUICK, consume_timeout_ms=30, consume_from=ConsumeFrom.LAST)
        broker.add("T", b"x")
        async with running(broker) as (client, _), push(client, handle, options) as consumer:
            await until(lambda: bool(consumer.assigned))
            told = await directly(broker)
            assert told.consume_result == "CR_THROW_EXCEPTION"
            assert (told.remark or "").startswith("TimeoutError")

    run(scenario)


def test_concurrent_direct_consumption_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound_requests, "MAX_OPEN_RESPONSES", 1)

    async def scenario() -> None:
        broker, go_on, seen = FakeBroker(), asyncio.Event(), asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            seen.set()
            await go_on.wait()

        broker.add("T", b"x")
        options = replace(QUICK, consume_from=ConsumeFrom.LAST)
        async with running(broker) as (client, _), push(client, handle, options) as consumer:
            await until(lambda: bool(consumer.assigned))
            first = asyncio.ensure_future(directly(broker))
            await seen.wait()
            fields = {"consumerGroup": "G", "brokerName": "broker-a"}
            busy = await broker.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, broker.records[0])
            assert busy.code == ResponseCode.SYSTEM_BUSY
            go_on.set()
            assert (await first).consume_result == "CR_SUCCESS"

    run(scenario)


def test_offsets_of_a_topic_are_returned() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"x", TAGS="A")

        async def handle(message: ReceivedMessage) -> None:
            pass

        async with running(broker) as (client, _), push(client, handle) as consumer:
            await until(lambda: consumer.stats().topics["T"].consumed == 1)
            for fields, expected in (
                ({"group": "G", "topic": "T"}, {QUEUE: 1}),
                ({"group": "G", "topic": "Other"}, {}),
                ({"group": "Other", "topic": "T"}, {}),
            ):
                answer = await broker.ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)
                assert ConsumerStatus.decode(answer.body).message_queue_table == expected

    run(scenario)


def test_polled_consumer_reports_its_state_and_has_no_handler() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"x")
        async with running(broker) as (client, _):
            consumer = LitePullConsumer(client, "G", LitePullOptions(consume_from=ConsumeFrom.FIRST))
            consumer.subscribe("T")
            async with consumer:
                assert len(await consumer.poll()) == 1
                info = await info_of(broker)
                assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
                assert info.mq_table[QUEUE].cached_msg_count == 1
                fields = {"consumerGroup": "G", "brokerName": "broker-a"}
                answer = await broker.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, broker.records[0])
                assert (answer.code, answer.remark) == (1, "The Consumer Group <G> not exist in this consumer")

    run(scenario)


def test_invalid_requests_are_rejected_without_harm() -> None:
    async def scenario() -> None:
        broker = FakeBroker()

        async def handle(message: ReceivedMessage) -> None:
            pass

        async with running(broker) as (client, _), push(client, handle) as consumer:
            await until(lambda: bool(consumer.assigned))
            for code, fields, body in (
                (RequestCode.GET_CONSUMER_RUNNING_INFO, {}, b""),
                (RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "Other", "clientId": "c"}, b""),
                (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "G"}, b"no record"),
                (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "Other"}, b""),
                (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"group": "G"}, b""),
                (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"group": "G"}, b"{"),
                (RequestCode.CHECK_TRANSACTION_STATE, {"tranStateTableOffset": "1", "commitLogOffset": "1"}, b"x"),
            ):
                answer = await broker.ask(code, dict(fields), body)
                assert answer.code == ResponseCode.SYSTEM_ERROR, code
                assert answer.remark
            unknown = await broker.ask(9_999, {})
            assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert (await info_of(broker)).mq_table

    run(scenario)


def test_rates_cover_the_last_minute_and_failures_the_last_hour() -> None:
    counters = rates.Counters()
    tracked = rates.Rates(counters)
    for _ in range(6 * 30):
        counters.pulled += 100
        counters.consumed += 90
        counters.failed += 10
        counters.pulls += 10
        counters.pulls_ms += 50
        counters.handled += 20
        counters.handled_ms += 400
        tracked.sample()
    status = tracked.status()
    assert (status.pull_rt, status.consume_rt) == (5, 20)
    assert status.pull_tps == pytest.approx(10, rel=0.2)
    assert status.consume_ok_tps == pytest.approx(9, rel=0.2)
    assert status.consume_failed_msgs == 1_800
    for _ in range(6 * 61):
        tracked.sample()
    assert json.loads(tracked.status().encode()) == {
        "pullRT": 0, "pullTPS": 0, "consumeRT": 0, "consumeOKTPS": 0, "consumeFailedTPS": 0, "consumeFailedMsgs": 0,
    }  # fmt: skip
