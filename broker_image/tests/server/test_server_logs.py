"""The log: one bounded line per event, rate limits, and no blocking on its reader."""

import fcntl
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from delaymq.clock import iso_time
from delaymq.config import BrokerConfig
from delaymq.server.logs import output as logs
from delaymq.server.logs.format import MAX_EVENT_CHARACTERS, MAX_FIELD_CHARACTERS, MAX_FIELDS, formatter
from delaymq.server.logs.limit import BURST_LINES, LineLimit
from delaymq.server.logs.writer import MAX_WAITING_BYTES, LogWriter
from delaymq.throttled_log import ThrottledLogger, fields

BOUND_S = 60.0
HEAD = r"time=\S+ level=warning logger=delaymq\.x "


def record(text: str, *args: object, level: int = logging.WARNING, **about: object) -> logging.LogRecord:
    made = logging.LogRecord("delaymq.x", level, "x.py", 1, text, args, None)
    made.__dict__.update(fields(**about))
    return made


def as_text(*args: object, **about: object) -> str:
    return formatter("text").format(record(*args, **about))  # type: ignore[arg-type]


def as_json(*args: object, **about: object) -> dict[str, object]:
    line = formatter("json").format(record(*args, **about))  # type: ignore[arg-type]
    assert len(line.splitlines()) == 1
    return dict(json.loads(line))


def failed() -> logging.LogRecord:
    made = record("it failed")
    try:
        try:
            raise OSError("the disk\nis full")
        except OSError as error:
            raise ValueError("cannot") from error
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)
    return made


# One line


def test_text_format_quotes_values_where_needed() -> None:
    line = as_text("a pull of %s failed", "x", topic="Orders", keys=["a", "b c"], peer="127.0.0.1:5", count=3, ok=True)
    assert re.fullmatch(
        HEAD + r'event="a pull of x failed" topic=Orders keys="a b c" peer=127\.0\.0\.1:5 count=3 ok=true', line
    )


def test_json_format_is_one_object_with_the_same_names() -> None:
    event = as_json("stored", topic="Orders", count=3, ok=True, group=None)
    time = event.pop("time")
    assert datetime.fromisoformat(str(time)).tzinfo is not None
    assert event == {
        "level": "warning", "logger": "delaymq.x", "event": "stored", "topic": "Orders", "count": 3, "ok": True,
    }  # fmt: skip


def test_times_have_milliseconds_and_utc_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert iso_time(1_700_000_000_007) == "2023-11-15T03:43:20.007+05:30"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    [
        "a\nlevel=error event=forged",
        "a\r\nb",
        "\x1b[2J\x00\x07",
        "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg",
        'quote " and \\ backslash',
        "\ud800 alone",
        "\u202eright to left",
        "",
        "x" * 1_000_000,
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_event_is_one_line_of_bounded_length_for_any_peer_data(text: str, form: str) -> None:
    odd: dict[str, Any] = {"a b=\n": text}
    line = formatter(form).format(record("stated: %s", text, topic=text, keys=[text] * 100, **odd))
    assert len(line.splitlines()) == 1
    assert len(line) < 12 * (MAX_EVENT_CHARACTERS + 35 * MAX_FIELD_CHARACTERS)
    assert line.isprintable()
    line.encode()
    if form == "text":
        assert re.fullmatch(r'time=\S+ level=warning logger=delaymq\.x( [\w.-]+=("(\\.|[^"\\])*"|[^\s"]+))+', line)
    else:
        assert json.loads(line)["logger"] == "delaymq.x"


def test_field_cannot_replace_a_standard_field() -> None:
    made = record("x")
    made.__dict__.update(fields(level="fatal", time="never", logger="root"))
    event = json.loads(formatter("json").format(made))
    assert (event["level"], event["level_"], event["logger_"]) == ("warning", "fatal", "root")


def test_number_of_fields_is_limited() -> None:
    event = as_json("x", **{f"field{number}": number for number in range(100)})
    assert len(event) == 4 + MAX_FIELDS


@pytest.mark.parametrize("form", ["text", "json"])
def test_error_line_includes_traceback_and_causes(form: str) -> None:
    line = formatter(form).format(failed())
    assert len(line.splitlines()) == 1
    assert "Traceback" not in line
    assert "ValueError: cannot" in line
    assert "caused by OSError: the disk\\nis full" in line.replace("\\\\n", "\\n")
    assert re.search(r"server/test_server_logs\.py:\d+ failed", line)


def test_unformattable_arguments_lose_only_their_value() -> None:
    assert "invalid arguments" in as_text("%d and %d", "x")


# How many


def test_flooding_logger_is_limited_without_affecting_others() -> None:
    now_s = [0.0]
    limit = LineLimit(lambda: now_s[0])
    flood = [limit.admit(record("x")) for _ in range(1_000)]
    assert flood.count(0) == BURST_LINES
    assert flood.count(None) == 1_000 - BURST_LINES
    other = record("y")
    other.name = "delaymq.other"
    assert limit.admit(other) == 0
    now_s[0] = 0.1  # room for two
    assert [limit.admit(record("x")) for _ in range(3)] == [1_000 - BURST_LINES, 0, None]
    assert limit.suppressed() == {"delaymq.x": 1}
    assert limit.suppressed() == {}


def test_debug_has_its_own_limit() -> None:
    limit = LineLimit(lambda: 0.0)
    assert all(limit.admit(record("x", level=logging.DEBUG)) == 0 for _ in range(10 * BURST_LINES))
    assert limit.admit(record("x")) == 0


def test_throttled_log_keeps_fields_and_counts_omitted_lines(caplog: pytest.LogCaptureFixture) -> None:
    now_ms = [0]
    quiet = ThrottledLogger(logging.getLogger("delaymq.quiet"), lambda: now_ms[0])
    for _ in range(3):
        quiet.warning("bad %s", "x", topic="Orders")
    now_ms[0] = 60_000
    quiet.warning("bad %s", "x", topic="Orders")
    assert [formatter("text").format(each).partition("event=")[2] for each in caplog.records] == [
        '"bad x" topic=Orders',
        '"bad x (2 more since the last time)" topic=Orders',
    ]


# Who waits


class Pipe:
    """A log whose reader reads on demand."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, 4_096)


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


def test_lines_keep_their_order(pipe: Pipe) -> None:
    writer = LogWriter(os.dup(pipe.writing), lambda count: f"{count} dropped")
    written: list[str] = []
    reader = threading.Thread(target=lambda: written.extend(_read(pipe.reading)))
    reader.start()
    for number in range(5_000):
        writer.put(f"line {number}")
    assert writer.flush(BOUND_S)
    writer.stop(BOUND_S)
    os.close(pipe.writing)
    os.close(writer._descriptor)
    reader.join(BOUND_S)
    assert written == [f"line {number}" for number in range(5_000)]


def test_stopped_reader_costs_lines_but_neither_time_nor_memory(pipe: Pipe) -> None:
    writer = LogWriter(pipe.writing, lambda count: f"{count} lines were dropped")
    line = "x" * 999
    count = 5 * MAX_WAITING_BYTES // 1_000
    for _ in range(count):
        writer.put(line)  # would never return if it waited: nobody reads
    assert writer.dropped > 0
    assert not writer.flush(0.01)
    written: list[str] = []
    reader = threading.Thread(target=lambda: written.extend(_read(pipe.reading)))
    reader.start()
    assert writer.flush(BOUND_S)
    writer.stop(BOUND_S)
    os.close(pipe.writing)
    reader.join(BOUND_S)
    told = [re.fullmatch(r"(\d+) lines were dropped", each) for each in written]
    dropped = sum(int(each[1]) for each in told if each is not None)
    assert dropped > 0
    assert written.count(line) + dropped == count


def test_closed_pipe_is_no_error(pipe: Pipe) -> None:
    os.close(pipe.reading)
    writer = LogWriter(pipe.writing, str)
    writer.put("x")
    assert writer.flush(BOUND_S)
    writer.stop(BOUND_S)


def _read(descriptor: int) -> list[str]:
    with open(descriptor, encoding="utf-8") as file:
        return file.read().splitlines()


def test_omitted_lines_are_reported_even_without_further_events(pipe: Pipe) -> None:
    handler = logs.LogHandler("text", pipe.writing, late_s=0.01)
    for _ in range(BURST_LINES + 50):
        handler.emit(record("x"))
    give_up = threading.Timer(BOUND_S, os.close, [pipe.writing])  # then the loop ends, and with it the test
    give_up.start()
    with open(pipe.reading, encoding="utf-8") as file:
        lines = [file.readline() for _ in range(BURST_LINES)]  # the size of a burst, and no more
        owed = 0
        for line in file:
            told = re.search(r'event="(\d+) lines of this logger were suppressed"', line)
            owed += int(told[1]) if told is not None else 0
            lines += [] if told is not None else [line]
            if owed + len(lines) == BURST_LINES + 50:
                break
    give_up.cancel()
    assert owed > 0
    assert owed + len(lines) == BURST_LINES + 50
    handler.close()


# Levels


@pytest.fixture
def root_level() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    yield
    logs.set_levels("info")
    root.setLevel(before)


@pytest.mark.usefixtures("root_level")
def test_per_logger_levels_end_with_their_setting() -> None:
    follow = logs.LevelFollower("info")
    follow(BrokerConfig(log_level="warning;delaymq.store=debug"))
    assert logging.getLogger().level == logging.WARNING
    assert logging.getLogger("delaymq.store.recovery.recovery").isEnabledFor(logging.DEBUG)
    follow(BrokerConfig(log_level="error"))
    assert not logging.getLogger("delaymq.store.recovery.recovery").isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loud", "is not a level: use one of debug, info, warning, error"),
        ("info;", "does not name a logger"),
        ("info;warning", "second level"),
        ("info;os.path=debug", "does not name a logger"),
        ("info;delaymq.store=loud", "is not a level"),
        (";".join(["info", *(f"delaymq.a{number}=debug" for number in range(33))]), "at most 32"),
        ("x" * 10_000, "is not a level"),
    ],
)
def test_invalid_levels_are_rejected(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        BrokerConfig(log_level=text)
    assert str(error.value).startswith("logLevel: ")
    assert len(str(error.value)) < 500
