"""Form 2 of due times and marks: round trip, damage, copies, unknown forms."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import pytest
from delaymq.message.errors import IllegalMessageError, NewerFormError
from delaymq.message.timed_marks import (
    MAX_NUMBER,
    MAX_TEXT_BYTES,
    TimedDue,
    TimedMark,
    TimedMarkKind,
    corrected,
    end_of,
    parse_own_due,
    parse_own_mark,
    place_of,
)
from hypothesis import given
from hypothesis import strategies as st

numbers = st.integers(0, MAX_NUMBER)
details = st.dictionaries(
    st.text("abcdefghijklmnopqrstuvwxyzABC", min_size=1, max_size=12).filter(lambda key: key[0].islower()),
    st.text("abcXYZ0189_.-", max_size=24),
    max_size=4,
)
dues = st.builds(TimedDue, numbers, numbers, numbers, details)
marks = st.builds(
    TimedMark,
    place=numbers,
    kind=st.sampled_from(TimedMarkKind),
    decided_ms=numbers,
    identity=numbers,
    record=numbers,
    due_ms=numbers,
    next_due_ms=st.none() | numbers,
    queue=st.none() | st.tuples(numbers, numbers),
    details=details,
)
FIRST = TimedDue(4096, 1_800_000_000_250, 4096)
MARK = TimedMark(
    place=8192,
    kind=TimedMarkKind.MOVED,
    decided_ms=1_799_000_000_000,
    identity=4096,
    record=6144,
    due_ms=1_800_000_000_250,
    next_due_ms=1_900_000_000_000,
    queue=(0, 17),
    details={"run": "3", "by": "YWxpY2U"},
)


def sealed(text: str) -> str:
    return f"{text}:{crc32(text.encode()):08x}"


def test_text_is_that_of_the_format() -> None:
    assert str(FIRST) == sealed("2:00000000000000004096:1800000000250")
    assert str(TimedDue(8192, 5, 4096)) == sealed("2:00000000000000008192:5:4096:")
    assert str(TimedDue(8192, 5, 4096, {"run": "3"})) == sealed("2:00000000000000008192:5:4096:run=3")
    assert str(MARK) == sealed(
        "2:00000000000000008192:moved:1799000000000:4096:6144:1800000000250:1900000000000:0.17:run=3,by=YWxpY2U"
    )
    delivered = TimedMark(place=9, kind=TimedMarkKind.DELIVERED, decided_ms=7, identity=3, record=3, due_ms=6)
    assert str(delivered) == sealed("2:00000000000000000009:delivered:7:3::6:::")


@given(dues)
def test_due_time_is_read_back_at_its_place_only(due: TimedDue) -> None:
    assert parse_own_due(str(due), due.place) == due
    assert parse_own_due(str(due), due.place ^ 1) is None
    assert place_of(str(due)) == due.place


@given(marks)
def test_mark_is_read_back_at_its_place_only(mark: TimedMark) -> None:
    assert parse_own_mark(str(mark), mark.place) == mark
    assert parse_own_mark(str(mark), mark.place ^ 1) is None
    assert len(str(mark)) <= MAX_TEXT_BYTES


@given(dues)
def test_length_of_a_due_time_does_not_depend_on_its_place(due: TimedDue) -> None:
    first = TimedDue(due.place, due.due_ms, due.place)
    assert len(str(first)) == len(str(TimedDue(0, due.due_ms, 0)))


@given(st.one_of(dues, marks), st.data())
def test_flipped_bit_is_detected_and_corrected(statement: TimedDue | TimedMark, data: st.DataObject) -> None:
    raw = bytearray(str(statement).encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    damaged = raw.decode("utf-8", "surrogateescape")
    parse = parse_own_due if isinstance(statement, TimedDue) else parse_own_mark
    assert parse(damaged, statement.place) is None
    assert corrected(damaged, statement.place) == str(statement)


@pytest.mark.parametrize(
    "statement",
    [
        TimedDue(1, -1, 1),
        replace(MARK, due_ms=-1),
        replace(MARK, queue=(0, -1)),
        replace(MARK, details={"by": "a:b"}),
        replace(MARK, details={"by": "a,run=2"}),
        replace(MARK, details={"By": "a"}),
        replace(MARK, details={"by": "x" * MAX_TEXT_BYTES}),
    ],
)
def test_statement_that_could_not_be_read_back_is_not_written(statement: TimedDue | TimedMark) -> None:
    with pytest.raises(IllegalMessageError):
        str(statement)


def test_damage_that_is_no_flipped_bit_is_not_corrected() -> None:
    text = str(FIRST)
    assert corrected(text.replace("0250", "0521"), FIRST.place) is None
    assert corrected("x" * (MAX_TEXT_BYTES + 1), 0) is None


@pytest.mark.parametrize(
    "body",
    [
        "3:00000000000000004096:1800000000250",
        "2:00000000000000004096:1800000000250:1",
        "2:00000000000000004096:1800000000250:1:run=1:1",
        "2:00000000000000004096:1800000000250:1:run",
        "2:00000000000000004096:soon",
        "2:00000000000000004096:9223372036854775808",
        "2:00000000000000004096:",
    ],
)
def test_sound_due_time_of_an_unknown_form_is_refused_at_its_place(body: str) -> None:
    with pytest.raises(NewerFormError, match="use the version that wrote the store"):
        parse_own_due(sealed(body), 4096)
    # RocketMQ's broker may have copied it.
    assert parse_own_due(sealed(body), 4097) is None


@pytest.mark.parametrize(
    "body",
    [
        "3:00000000000000004096:moved:1:2::3:::",
        "2:00000000000000004096:teleported:1:2::3:::",
        "2:00000000000000004096:moved:1:2::3::",
        "2:00000000000000004096:moved:1:2::3::::",
        "2:00000000000000004096:moved:1:-2::3:::",
        "2:00000000000000004096:moved:1:2::3::5:",
        "2:00000000000000004096:moved:1:2::3:::run",
        "2:00000000000000004096:moved:1:2::3:::run=1,run=2",
    ],
)
def test_sound_mark_of_an_unknown_form_is_refused_at_its_place(body: str) -> None:
    with pytest.raises(NewerFormError, match="use the version that wrote the store"):
        parse_own_mark(sealed(body), 4096)
    assert parse_own_mark(sealed(body), 4097) is None


@pytest.mark.parametrize(
    "text", ["", "2", "2:4096:5:00000000", "delivered:0:0:0", "2:00000000000000004096:5:zzzzzzzz", "é"]
)
def test_other_text_is_no_statement(text: str) -> None:
    assert place_of(text) is None
    assert parse_own_due(text, 4096) is None
    assert parse_own_mark(text, 4096) is None
    assert corrected(text, 4096) is None


@pytest.mark.parametrize("record", [MARK.identity, MARK.identity + 500])
def test_mark_that_ends_a_message_is_written_like_any_other(record: int) -> None:
    statement = end_of(TimedMarkKind.DROPPED, 5, MARK.identity, record, 7)
    mark = TimedMark(place=0, kind=TimedMarkKind.DROPPED, decided_ms=5, identity=MARK.identity, record=record, due_ms=7)
    assert statement == mark.statement()
