"""Timed messages: what callers may request, what brokers receive, and the due times of received messages."""

import asyncio
import base64
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zlib import crc32

import pytest
from delaymq.client import (
    Client,
    HalfMessage,
    IllegalMessageError,
    LocalState,
    Message,
    MessageQueue,
    NoSuchDelayError,
    Producer,
    ReceivedMessage,
    TransactionProducer,
    split_batches,
)
from delaymq.client.consumer.handlers.retries import Retries
from delaymq.client.due_times import delay_in_ms, due_in_ms, due_of_handle
from delaymq.client.sending.batches import batch_body, batched_bytes
from delaymq.client.sending.properties import outgoing_properties, properties_text
from delaymq.message import names
from delaymq.message.ids import offset_message_id, pack_host
from delaymq.message.marks import format_due
from delaymq.message.properties import parse_properties
from delaymq.message.timed_marks import TimedDue, TimedMark, TimedMarkKind
from delaymq.protocol.batch import decode_batch
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq_testing.client.fake_peer import FakeBroker, run, running

MESSAGE = Message(topic="T", body=b"hello")
LEVELS = "messageDelayLevel=1s 5s 10s\n"
TIMERS = LEVELS + "httpPort=8080\ntimerMaxDelaySec=315360000\n"
ROCKETMQ_5 = LEVELS + "timerMaxDelaySec=259200\n"
AT = datetime(2027, 1, 1, 9, tzinfo=timezone(timedelta(hours=1)))
AT_MS = 1_798_790_400_000
HANDLE = base64.urlsafe_b64encode(b"v1 T broker-a 1798790400000 ID").decode()
TIMER_NAMES = {names.DELAY, *names.TIMER_PROPERTIES}


def with_timers(name: str = "broker-a") -> FakeBroker:
    broker = FakeBroker(name)
    broker.settings = TIMERS
    return broker


def timing(fields: dict[str, str]) -> dict[str, str]:
    """The properties of a send that delay it."""
    return {name: value for name, value in parse_properties(fields["i"]).items() if name in TIMER_NAMES}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"delay": 1.5}, {"TIMER_DELAY_MS": "1500"}),
        ({"delay": 5}, {"TIMER_DELAY_MS": "5000"}),
        ({"delay": "5s"}, {"TIMER_DELAY_MS": "5000"}),
        ({"delay": timedelta(days=400)}, {"TIMER_DELAY_MS": "34560000000"}),
        ({"at": AT}, {"TIMER_DELIVER_MS": str(AT_MS)}),
        ({"at": AT + timedelta(microseconds=1)}, {"TIMER_DELIVER_MS": str(AT_MS + 1)}),
        ({"delay": 0}, {}),
        ({"delay": None, "at": None}, {}),
    ],
)
def test_schedule_becomes_a_property(given: dict[str, Any], expected: dict[str, str]) -> None:
    async def scenario() -> None:
        broker = with_timers()
        async with running(broker) as (client, _), Producer(client) as producer:
            await producer.send(MESSAGE, **given)
            await producer.send(Message(topic="T", body=b"", **given))
            await producer.send_oneway(MESSAGE, **given)
            await producer.send(MESSAGE)
            assert [timing(fields) for _, fields in broker.sent()] == [expected, expected, expected, {}]
            assert len(broker.asked(RequestCode.GET_BROKER_CONFIG)) == (1 if expected else 0)

    run(scenario)


@pytest.mark.parametrize(
    ("delay", "ms"),
    [
        ("1500ms", 1_500), ("1.5h", 5_400_000), ("0.1s", 100), ("0.0001s", 1), ("0s", 0), ("2d", 172_800_000),
        ("1m", 60_000), (0.1 + 0.2, 300), (0.0001, 1), (1.0005, 1_001), (timedelta(microseconds=1), 1), (-0.0, 0),
    ],
)  # fmt: skip
def test_delay_is_rounded_up_to_milliseconds(delay: Any, ms: int) -> None:
    assert delay_in_ms(delay) == ms


@pytest.mark.parametrize(
    ("delay", "why"),
    [
        (-1, "-1 is not a valid delay: it must not be negative"),
        (timedelta(microseconds=-1), "must not be negative"),
        (float("nan"), "nan s is not a valid delay"),
        (float("inf"), "inf s is not a valid delay"),
        (10**30, "is not a valid delay"),
        pytest.param(10**5_000, "this int s is not a valid delay", id="huge"),
        (True, "True is not a valid delay: use a string such as '5s', a number of seconds or a timedelta"),
        (b"5s", "use a string such as '5s'"),
        (AT, "use a string such as '5s'"),
        ("", "use a number and ms, s, m, h or d"),
        ("5", "use a number and ms, s, m, h or d"),
        ("-5s", "use a number and ms, s, m, h or d"),
        ("1e3s", "use a number and ms, s, m, h or d"),
        ("5w", "use a number and ms, s, m, h or d"),
        ("٣s", "use a number and ms, s, m, h or d"),
        ("999999999999d", "is out of range"),
        pytest.param("9" * 1_000 + "s", "9…", id="long"),
    ],
)
def test_invalid_delay_is_rejected(delay: Any, why: str) -> None:
    with pytest.raises(NoSuchDelayError) as caught:
        delay_in_ms(delay)
    assert why in str(caught.value)
    with pytest.raises(IllegalMessageError) as illegal:
        Message(topic="T", body=b"", delay=delay)
    assert str(illegal.value) == str(caught.value)


@pytest.mark.parametrize(
    ("at", "why"),
    [
        (datetime(2027, 1, 1, 9), "has no time zone: use at.astimezone()"),
        (AT.date(), "is not a due time: use a datetime with a time zone"),
        (AT_MS, "is not a due time"),
        ("2027-01-01T09:00+01:00", "is not a due time"),
        (True, "is not a due time"),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), "is before 1970"),
    ],
)
def test_invalid_due_time_is_rejected(at: Any, why: str) -> None:
    for attempt in (lambda: due_in_ms(at), lambda: Message(topic="T", body=b"", at=at)):
        with pytest.raises(IllegalMessageError) as caught:
            attempt()
        assert why in str(caught.value)


def test_extreme_due_times_are_numbers() -> None:
    assert due_in_ms(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert due_in_ms(datetime.max.replace(tzinfo=UTC)) == 253_402_300_800_000


@pytest.mark.parametrize(
    ("fields", "arguments", "named"),
    [
        ({}, {"delay": 1, "at": AT}, "the send's delay and the send's at"),
        ({"delay": 1}, {"delay": 1}, "the send's delay and the message's delay"),
        ({"at": AT}, {"delay": 1}, "the send's delay and the message's at"),
        ({"delay_level": 2}, {"delay": 1}, "the send's delay and the message's delay_level"),
        ({"delay_level": 2}, {"at": AT}, "the send's at and the message's delay_level"),
    ],
)
def test_only_one_schedule_is_accepted(fields: dict[str, Any], arguments: dict[str, Any], named: str) -> None:
    message = Message(topic="T", body=b"", **fields)

    async def scenario() -> None:
        broker = with_timers()
        async with running(broker) as (client, _), Producer(client) as producer:
            for send in (producer.send, producer.send_oneway):
                with pytest.raises(IllegalMessageError, match=f"{named} exclude each other: give one of them"):
                    await send(message, **arguments)
        assert broker.sent() == []

    run(scenario)


@pytest.mark.parametrize(
    "fields", [{"delay": 1, "at": AT}, {"delay": 1, "delay_level": 1}, {"at": AT, "delay_level": 1}]
)
def test_message_with_two_schedules_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(IllegalMessageError, match="exclude each other"):
        Message(topic="T", body=b"", **fields)


@pytest.mark.parametrize("name", names.TIMER_PROPERTIES)
def test_properties_of_schedules_are_reserved(name: str) -> None:
    with pytest.raises(IllegalMessageError, match=f"property {name} is reserved: use the corresponding field"):
        outgoing_properties(Message(topic="T", body=b"", properties={name: "1"}), "ID")


@pytest.mark.parametrize("settings", [LEVELS, LEVELS + "httpPort=8080\n", ROCKETMQ_5])
def test_due_time_is_rejected_without_timed_messages(settings: str) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.settings = settings
        async with running(broker) as (client, _), Producer(client) as producer:
            with pytest.raises(NoSuchDelayError, match=f"{broker.address} does not support timed messages"):
                await producer.send(MESSAGE, at=AT)
            with pytest.raises(NoSuchDelayError, match="does not support timed messages and has no delay level"):
                await producer.send(MESSAGE, delay="1500ms")
            with pytest.raises(NoSuchDelayError, match=f"{broker.address} does not support timed messages"):
                await producer.send_batch([Message(topic="T", body=b"", delay=5)])
            await producer.send(MESSAGE, delay=5)
            assert [timing(fields) for _, fields in broker.sent()] == [{"DELAY": "2"}]
            # An upgrade is detected although the settings are remembered.
            broker.settings = TIMERS
            await producer.send(MESSAGE, at=AT)
            await producer.send(MESSAGE, delay="1500ms")
        assert [timing(fields) for _, fields in broker.sent()[1:]] == [
            {"TIMER_DELIVER_MS": str(AT_MS)}, {"TIMER_DELAY_MS": "1500"},
        ]  # fmt: skip

    run(scenario)


def test_each_attempt_uses_the_support_of_its_broker() -> None:
    async def scenario() -> None:
        brokers = with_timers("broker-a"), FakeBroker("broker-b")
        for broker in brokers:
            broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: Response(ResponseCode.SERVICE_NOT_AVAILABLE, "busy")
        async with running(*brokers) as (client, _), Producer(client) as producer:
            with pytest.raises(Exception, match="after 3 attempts"):
                await producer.send(MESSAGE, delay=5)
        for broker, expected in zip(brokers, ({"TIMER_DELAY_MS": "5000"}, {"DELAY": "2"}), strict=True):
            found = [timing(fields) for _, fields in broker.sent()]
            assert found
            assert all(each == expected for each in found)

    run(scenario)


def test_messages_of_a_batch_have_their_own_times() -> None:
    async def scenario() -> None:
        broker = with_timers()
        messages = [
            MESSAGE,
            Message(topic="T", body=b"1", delay="1500ms"),
            Message(topic="T", body=b"2", at=AT),
            Message(topic="T", body=b"3", delay=0),
        ]
        async with running(broker) as (client, _), Producer(client) as producer:
            await producer.send_batch(messages)
            [(body, fields)] = broker.sent()
            assert TIMER_NAMES.isdisjoint(parse_properties(fields["i"]))
            found = [parse_properties(each.properties.decode()) for each in decode_batch(body)]
            assert [{name: value for name, value in each.items() if name in TIMER_NAMES} for each in found] == [
                {}, {"TIMER_DELAY_MS": "1500"}, {"TIMER_DELIVER_MS": str(AT_MS)}, {},
            ]  # fmt: skip
            await producer.send_batch([MESSAGE])
            assert len(broker.asked(RequestCode.GET_BROKER_CONFIG)) == 1

    run(scenario)


def test_batches_stay_within_their_size_with_times() -> None:
    messages = [Message(topic="T", body=b"x", at=datetime.max.replace(tzinfo=UTC)) for _ in range(40)]
    for batch in split_batches(messages, max_bytes=1_000):
        assert len(batch) > 1
        assert len(batch_body(batch, ["I" * 32] * len(batch))[0]) <= sum(map(batched_bytes, batch)) <= 1_000


class Listener:
    def __init__(self) -> None:
        self.executed: list[HalfMessage] = []

    async def execute(self, message: HalfMessage, arg: object) -> LocalState:
        self.executed.append(message)
        return LocalState.COMMIT

    async def check(self, message: ReceivedMessage) -> LocalState:
        return LocalState.UNKNOWN


def test_transaction_may_have_a_delay_or_a_due_time() -> None:
    async def scenario() -> None:
        broker, listener = with_timers(), Listener()

        def stored(command: Command) -> Response:
            own_id = offset_message_id(pack_host("127.0.0.1", 1), 512)
            return Response(fields={"msgId": own_id, "queueId": command.fields["e"], "queueOffset": "4"})

        broker.scripts[RequestCode.SEND_MESSAGE_V2] = stored
        async with running(broker) as (client, _), TransactionProducer(client, "P", listener) as producer:
            await producer.send_in_transaction(MESSAGE, delay=1.5)
            await producer.send_in_transaction(Message(topic="T", body=b"", at=AT))
            assert listener.executed[1].at == AT
            broker.settings = LEVELS
            async with Client(client.name_servers) as fresh, TransactionProducer(fresh, "Q", listener) as other:
                for given in ({"delay": 5}, {"at": AT}):
                    with pytest.raises(NoSuchDelayError, match="is not DelayMQ and would lose the message"):
                        await other.send_in_transaction(MESSAGE, **given)
        assert [timing(fields) for _, fields in broker.sent()] == [
            {"TIMER_DELAY_MS": "1500"}, {"TIMER_DELIVER_MS": str(AT_MS)},
        ]  # fmt: skip
        assert len(listener.executed) == 2

    run(scenario)


def test_result_has_the_recall_handle_and_its_due_time() -> None:
    async def scenario() -> None:
        broker = with_timers()
        fields = {"msgId": "AA", "queueId": "0", "queueOffset": "7"}
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: Response(fields=fields | {"recallHandle": HANDLE})
        async with running(broker) as (client, _), Producer(client) as producer:
            result = await producer.send(MESSAGE, at=AT)
            assert (result.recall_handle, result.due_ms) == (HANDLE, AT_MS)
            broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: Response(fields=fields)
            result = await producer.send(MESSAGE)
            assert (result.recall_handle, result.due_ms) == (None, None)

    run(scenario)


@pytest.mark.parametrize(
    "text", [b"v2 T b 17 ID", b"v1 T b 17", b"v1 T b -1 ID", b"v1 T b x ID", b"\xff", b"v1 T b  ID"]
)
def test_due_time_of_an_unknown_handle_is_unknown(text: bytes) -> None:
    assert due_of_handle(base64.urlsafe_b64encode(text).decode()) is None


def test_invalid_handle_has_no_due_time() -> None:
    assert due_of_handle(None) is None
    for handle in ("", "%", "djEgVCB", "ü", HANDLE * 1_000):
        assert due_of_handle(handle) is None
    assert due_of_handle(HANDLE) == AT_MS
    assert due_of_handle(base64.urlsafe_b64encode(b"v1 T broker a 17 ID").decode()) == 17


def received(**properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="T", body=b"", queue=MessageQueue("b", 0, "T"), queue_offset=5, physical_offset=700, message_id="ID",
        offset_message_id="AA", properties=properties, born_timestamp_ms=1, store_timestamp_ms=AT_MS + 3,
        reconsume_times=0,
    )  # fmt: skip


def mark(place: int = 700) -> str:
    return str(
        TimedMark(
            place=place, kind=TimedMarkKind.DELIVERED, decided_ms=AT_MS + 1, identity=300, record=300, due_ms=AT_MS
        )
    )


def test_received_message_has_the_due_time_of_either_form() -> None:
    assert received(__DMQ_DUE=format_due(17, 0, 5)).due_ms == 17
    assert received(TIMER_OUT_MS=str(AT_MS), __DMQ_MARK=mark()).due_ms == AT_MS
    assert received(TIMER_OUT_MS=str(AT_MS), __DMQ_DUE=str(TimedDue(700, AT_MS, 700))).due_ms == AT_MS


def test_due_time_of_another_record_is_not_that_of_the_message() -> None:
    newer = mark().replace("2:", "3:", 1)
    for text in ("", "delivered:0:5:300", mark(701), mark()[:-1] + "x", newer):
        assert received(TIMER_OUT_MS=str(AT_MS), __DMQ_MARK=text).due_ms is None
    assert received(TIMER_OUT_MS=str(AT_MS)).due_ms is None
    assert received(__DMQ_DUE=str(TimedDue(701, AT_MS, 701))).due_ms is None


def test_statement_of_a_newer_form_has_no_due_time() -> None:
    text = f"3:{700:020d}:{AT_MS}"
    text = f"{text}:{crc32(text.encode()):08x}"
    assert received(__DMQ_DUE=text).due_ms is None
    assert received(__DMQ_MARK=text).due_ms is None


def test_retry_is_not_scheduled_by_properties_of_its_message() -> None:
    timers = {
        "TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": "1", "__STARTDELIVERTIME": "1",
        "TIMER_OUT_MS": "1", "TIMER_ENQUEUE_MS": "1", "TIMER_DEQUEUE_MS": "1", "TIMER_ROLL_TIMES": "1",
        "TIMER_DEL_UNIQKEY": "1", "__DMQ_MARK": mark(),
    }  # fmt: skip

    async def scenario() -> None:
        broker = with_timers()
        broker.scripts[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda _: Response(ResponseCode.SYSTEM_ERROR, "no")
        async with running(broker) as (client, _):
            message = ReceivedMessage(
                topic="T", body=b"x", queue=MessageQueue("broker-a", 0, "T"), queue_offset=0, physical_offset=700,
                message_id="ID", offset_message_id="AA", properties={"UNIQ_KEY": "ID", "own": "kept"} | timers,
                born_timestamp_ms=1, store_timestamp_ms=2, reconsume_times=0,
            )  # fmt: skip
            await client.route("T")
            assert await Retries(client, "G", 0, 16).send_back(message)
        [(_, fields)] = broker.sent()
        assert fields["b"] == "%RETRY%G"
        sent = parse_properties(fields["i"])
        assert timers.keys().isdisjoint(sent)
        assert (sent["own"], sent["DELAY"], sent["UNIQ_KEY"]) == ("kept", "3", "ID")

    run(scenario)


def test_timed_properties_fit_the_wire_format() -> None:
    async def scenario() -> None:
        broker = with_timers()
        async with running(broker) as (client, _), Producer(client) as producer:
            await asyncio.gather(*(producer.send(MESSAGE, delay=1.5) for _ in range(100)))
            assert len(broker.asked(RequestCode.GET_BROKER_CONFIG)) == 1
        for _, fields in broker.sent():
            assert properties_text(parse_properties(fields["i"])) == fields["i"]

    run(scenario)
