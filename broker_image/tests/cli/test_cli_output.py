"""Printed messages, and the verdict of the demo."""

import re
import time
from datetime import datetime

from delaymq.cli.commands.demo.report import Report, Sent
from delaymq.cli.terminal.output import duration
from delaymq.cli.terminal.times import format_time
from delaymq.cli.views.message_text import as_data, as_line, as_lines, stored_data
from delaymq.client import MessageQueue, ReceivedMessage
from delaymq.message import names
from delaymq.message.marks import format_due
from delaymq.message.timed_marks import TimedDue, TimedMark, TimedMarkKind

BORN_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def message(body: bytes = b"hello", *, topic: str = "T", **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic=topic, body=body, queue=MessageQueue("b", 3, "T"), queue_offset=9, physical_offset=0, message_id="ID",
        offset_message_id="OID", properties=properties, born_timestamp_ms=BORN_MS, store_timestamp_ms=BORN_MS + 5001,
        reconsume_times=0,
    )  # fmt: skip


def test_delayed_message_shows_its_delay_and_lateness() -> None:
    line = as_line(message(TAGS="A", KEYS="k1 k2", DELAY="2"), BORN_MS + 5_003, BORN_MS + 5_000)
    clock = datetime.fromtimestamp((BORN_MS + 5_003) / 1000).strftime("%Y-%m-%d %H:%M:%S")
    timing = f"due {clock}.000  delayed 5.0 s  late by 1 ms"
    assert line == f"{clock}.003  hello  tags A  keys k1 k2  {timing}  queue 3, offset 9"


def test_delivered_message_shows_its_due_time_and_lateness() -> None:
    mark = TimedMark(
        place=0, kind=TimedMarkKind.DELIVERED, decided_ms=BORN_MS, identity=7, record=7, due_ms=BORN_MS + 4_900
    )
    timed = message(__DMQ_MARK=str(mark), TIMER_OUT_MS=str(BORN_MS + 4_900))
    level = message(__DMQ_DUE=format_due(BORN_MS + 5_000, 1, 9), DELAY="2")
    assert [each for each in as_lines(timed) if each.startswith(("due:", "late"))] == [
        f"due:               {format_time(BORN_MS + 4_900)}", "late by:           101 ms",
    ]  # fmt: skip
    assert [each for each in as_lines(level) if each.startswith(("due:", "late"))] == [
        f"due:               {format_time(BORN_MS + 5_000)}, level 2", "late by:           1 ms",
    ]  # fmt: skip
    assert not [each for each in as_lines(message()) if each.startswith(("due:", "late"))]
    assert (stored_data(timed)["dueMs"], stored_data(timed)["state"]) == (BORN_MS + 4_900, "stored")


def test_pending_timed_message_shows_its_real_topic() -> None:
    due = str(TimedDue(0, BORN_MS + 9_000, 0))
    pending = message(topic=names.TIMER_TOPIC, __DMQ_DUE=due, REAL_TOPIC="Orders")
    lines = as_lines(pending)
    assert "topic:             Orders (pending delivery)" in lines
    assert f"due:               {format_time(BORN_MS + 9_000)}" in lines
    assert not [each for each in lines if each.startswith("late")]
    data = stored_data(pending)
    assert (data["topic"], data["state"], data["dueMs"]) == ("Orders", "waiting", BORN_MS + 9_000)


def test_punctual_message_read_later_is_not_late() -> None:
    line = as_line(message(DELAY="2"), BORN_MS + 65_001, BORN_MS + 5_000)
    assert "late by 1 ms  read 1m 0s later" in line


def test_line_has_a_date_unless_the_message_is_of_today() -> None:
    now_ms = round(time.time() * 1000)
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3}  ", as_line(message(), now_ms, None))
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  ", as_line(message(), now_ms - 2 * DAY_MS, None))


def test_binary_or_long_body_is_one_readable_line() -> None:
    assert "0xff00" in as_line(message(b"\xff\x00"), BORN_MS, None)
    assert len(as_line(message(b"x" * 100_000), BORN_MS, None)) < 400


def test_json_message_has_its_text_or_bytes() -> None:
    data = as_data(message(DELAY="2"), BORN_MS + 5_003, BORN_MS + 5_000)
    assert (data["body"], data["latenessMs"], data["delayLevel"]) == ("hello", 1, 2)
    assert as_data(message(b"\xff"), BORN_MS, None)["bodyBase64"] == "/w=="
    assert as_data(message(), BORN_MS, None)["latenessMs"] is None


def test_durations_are_short() -> None:
    shown = [duration(ms) for ms in (0, 999, 12_345, 320_000, 7_500_000, 200_000_000)]
    assert shown == ["0 ms", "999 ms", "12.3 s", "5m 20s", "2h 5m", "2d 7h"]


def report(*arrivals_ms: list[int]) -> Report:
    return Report({str(number): Sent("1s", 1_000, BORN_MS, each) for number, each in enumerate(arrivals_ms)})


def test_demo_succeeds_when_all_messages_came_once_and_on_time() -> None:
    good = report([BORN_MS + 1_000], [BORN_MS + 1_010])
    assert good.is_good
    assert "2 sent, 2 arrived, 0 lost, 0 twice, 0 early" in good.summary()
    assert "median 5 ms, at most 10 ms" in good.summary()


def test_demo_fails_on_lost_duplicate_early_late_or_foreign_messages() -> None:
    on_time = BORN_MS + 1_001
    foreign = report([on_time])
    foreign.arrived(message(), on_time)
    bad = [
        report(),
        report([on_time], []),
        report([on_time, on_time]),
        report([on_time - 2]),
        report([on_time + 1_000]),
    ]
    assert [each.is_good for each in [*bad, foreign]] == [False] * 6
    assert "1 lost" in bad[1].summary()
    assert "1 twice" in bad[2].summary()
    assert "1 early" in bad[3].summary()
