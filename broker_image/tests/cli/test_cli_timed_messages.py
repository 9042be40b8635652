"""`delaymq send` with delays, due times and levels, against a scripted broker."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from delaymq.cli.terminal.times import format_time
from delaymq.cli.views.message_lookup import Unreachable, find_by_key, found_rows
from delaymq.message import names
from delaymq.message.ids import pack_host
from delaymq.message.properties import encode_properties, parse_properties
from delaymq.message.record import encode_record
from delaymq.message.timed_marks import TimedDue
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq_testing.cli_running import Done, called
from delaymq_testing.client.fake_peer import FakeBroker, FakeNameServer, run, running

DUE_MS = 1_798_790_400_000
HANDLE = base64.urlsafe_b64encode(f"v1 T broker-a {DUE_MS} ID".encode()).decode()
TIMERS = "messageDelayLevel=1s 5s 10s\nhttpPort=8080\ntimerMaxDelaySec=315360000\n"
TIMER_NAMES = {names.DELAY, *names.TIMER_PROPERTIES}


@dataclass
class Scripted:
    """A broker that stores timed messages, in a thread of its own."""

    broker: FakeBroker
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, *words: str, given: str = "") -> Done:
        return called(*words, environment=self.environment, given=given)

    def timings(self) -> list[dict[str, str]]:
        return [
            {name: value for name, value in parse_properties(fields["i"]).items() if name in TIMER_NAMES}
            for _, fields in self.broker.sent()
        ]


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    broker = FakeBroker()
    broker.settings = TIMERS

    def stored(command: Command) -> Response:
        response = broker.send_answer(command)
        if "TIMER_" in command.fields["i"]:
            response.fields["recallHandle"] = HANDLE
        return response

    broker.scripts[RequestCode.SEND_MESSAGE_V2] = stored
    name_server = FakeNameServer(broker)
    started, ending = threading.Event(), threading.Event()

    async def serve() -> None:
        await broker.start()
        await name_server.start()
        started.set()
        await asyncio.to_thread(ending.wait)
        await name_server.stop()
        await broker.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(60)
        yield Scripted(broker, {"DELAYMQ_NAMESRV": name_server.address})
    finally:
        ending.set()
        thread.join(60)


@pytest.mark.parametrize(
    ("words", "timing", "shown"),
    [
        (("--delay", "1500ms"), {"TIMER_DELAY_MS": "1500"}, f"due in 1500ms at {format_time(DUE_MS)}"),
        (("--delay", "1.5h"), {"TIMER_DELAY_MS": "5400000"}, f"due in 1.5h at {format_time(DUE_MS)}"),
        (("--at", "2027-01-01T09:00+01:00"), {"TIMER_DELIVER_MS": str(DUE_MS)}, f"due {format_time(DUE_MS)}"),
    ],
)
def test_timed_message_shows_due_time_and_handle(
    scripted: Scripted, words: tuple[str, ...], timing: dict[str, str], shown: str
) -> None:
    done = scripted("send", "T", "x", *words)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(f" to T (broker-a, queue 0, {shown}, recall handle {HANDLE})\n")
    [sent] = [json.loads(line) for line in scripted("send", "T", "x", *words, "--json").lines]
    assert (sent["dueMs"], sent["recallHandle"]) == (DUE_MS, HANDLE)
    assert sent["delay"] == (words[1] if words[0] == "--delay" else None)
    assert scripted.timings() == [timing, timing]


def test_level_and_no_delay_have_no_handle(scripted: Scripted) -> None:
    assert scripted("send", "T", "x", "--delay-level", "3").out.endswith("(broker-a, queue 0, delay level 3)\n")
    assert scripted("send", "T", "x", "--delay", "0s").out.endswith("(broker-a, queue 0, offset 7)\n")
    [sent] = [json.loads(line) for line in scripted("send", "T", "x", "--delay-level", "3", "--json").lines]
    assert (sent["delay"], sent["dueMs"], sent["recallHandle"]) == (None, None, None)
    assert scripted.timings() == [{"DELAY": "3"}, {}, {"DELAY": "3"}]


def test_past_due_time_is_immediate(scripted: Scripted) -> None:
    scripted.broker.scripts[RequestCode.SEND_MESSAGE_V2] = scripted.broker.send_answer
    done = scripted("send", "T", "x", "--at", "2001-01-01T00:00Z")
    assert done.out.endswith("(broker-a, queue 0, due immediately, offset 7)\n")
    assert scripted.timings() == [{"TIMER_DELIVER_MS": "978307200000"}]


def test_each_line_of_standard_input_has_the_delay(scripted: Scripted) -> None:
    done = scripted("send", "T", "--lines", "-", "--delay", "1500ms", "--at-once", "4", given="a\nb\nc\n")
    assert (done.code, len(done.lines)) == (0, 3)
    assert scripted.timings() == [{"TIMER_DELAY_MS": "1500"}] * 3


def test_broker_without_timed_messages_accepts_its_levels_only(scripted: Scripted) -> None:
    scripted.broker.settings = "messageDelayLevel=1s 5s 10s\n"
    assert scripted("send", "T", "x", "--delay", "5000ms").out.endswith("(broker-a, queue 0, due in 5000ms)\n")
    for words, told in (
        (("--delay", "1500ms"), "no delay level of exactly 1500ms; its levels are: 1s 5s 10s"),
        (("--at", "2027-01-01T09:00Z"), "does not support timed messages, which due times"),
    ):
        done = scripted("send", "T", "x", *words)
        assert (done.code, done.out) == (2, "")
        assert told in done.err
    assert scripted.timings() == [{"DELAY": "2"}]


def test_rejection_by_the_broker_is_reported(scripted: Scripted) -> None:
    refusal = "the due time is more than 315360000 s ahead"
    scripted.broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: Response(ResponseCode.MESSAGE_ILLEGAL, refusal)
    done = scripted("send", "T", "x", "--at", "9999-01-01T00:00Z")
    assert done.code != 0
    assert refusal in done.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--delay", "5s", "--at", "2027-01-01T09:00Z"), "--delay and --at exclude each other: give one of them"),
        (("--delay", "5s", "--delay-level", "1"), "--delay and --delay-level exclude each other"),
        (("--at", "2027-01-01T09:00Z", "--delay-level", "1"), "--at and --delay-level exclude each other"),
        (("--delay", "-5s"), "--delay: '-5s' is not a delay: use a number and ms, s, m, h or d"),
        (("--delay", "5"), "--delay: '5' is not a delay"),
        (("--delay", "nan"), "--delay: 'nan' is not a delay"),
        (("--delay", ""), "--delay: '' is not a delay"),
        (("--at", "2027-01-01T09:00"), "has no offset from UTC: use 2027-01-01T09:00:00"),
        (("--at", "1969-01-01T00:00Z"), "is before 1970"),
        (("--at", ""), "is not a due time"),
        (("--delay-level", "0"), "greater than or equal to 1"),
    ],
)
def test_invalid_time_is_reported_before_a_connection(words: tuple[str, ...], told: str) -> None:
    done = called("send", "T", "x", *words, environment={"DELAYMQ_NAMESRV": "127.0.0.1:1"})
    assert (done.code, done.out) == (2, "")
    assert told in done.err


def pending_record(physical_offset: int, identity: int, due_ms: int, unique_id: str, port: int) -> bytes:
    properties = {
        "UNIQ_KEY": unique_id, "KEYS": "k", "REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": str(due_ms),
        names.DUE: str(TimedDue(physical_offset, due_ms, identity)),
    }  # fmt: skip
    return encode_record(
        topic=names.TIMER_TOPIC.encode(), queue_id=0, queue_offset=physical_offset, physical_offset=physical_offset,
        flag=0, sys_flag=0, born_timestamp_ms=1, born_host=pack_host("127.0.0.1", 1),
        store_timestamp_ms=physical_offset, store_host=pack_host("127.0.0.1", port), reconsume_times=0,
        prepared_transaction_offset=0, body=b"x", properties=encode_properties(properties),
    )  # fmt: skip


def test_pending_timed_message_is_found_once_by_key() -> None:
    async def scenario() -> None:
        broker = FakeBroker()

        def query(command: Command) -> Response:
            if command.fields["topic"] != names.TIMER_TOPIC:
                return Response(ResponseCode.QUERY_NOT_FOUND, "none")
            records = (
                pending_record(500, 500, DUE_MS, "A", broker.port),
                pending_record(900, 500, DUE_MS + 60_000, "A", broker.port),
                pending_record(700, 700, DUE_MS, "B", broker.port),
            )
            return Response(body=b"".join(records))

        broker.scripts[RequestCode.QUERY_MESSAGE] = query
        async with running(broker) as (client, name_server):
            name_server.topics[names.TIMER_TOPIC] = 1
            unreachable = Unreachable()
            found = await find_by_key(client, "T", "k", 0, None, unreachable)
            assert not unreachable
        assert [(each.message_id, each.due_ms) for each in found] == [("B", DUE_MS), ("A", DUE_MS + 60_000)]
        assert [row[6] for row in found_rows(found, 10)] == [
            f"pending until {format_time(DUE_MS)}", f"pending until {format_time(DUE_MS + 60_000)}",
        ]  # fmt: skip

    run(scenario)
