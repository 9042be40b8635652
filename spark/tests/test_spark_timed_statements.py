"""Columns from statements of form 2, compared with the broker's own parsers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delaymq.message import names
from delaymq.message.errors import NewerFormError
from delaymq.message.group_marks import GroupMark
from delaymq.message.timed_marks import MAX_NUMBER, GroupMarkKind, TimedDue, TimedMark, TimedMarkKind
from delaymq_spark.cli import run
from delaymq_spark_testing.store import comparable, reader_rows, source_rows
from delaymq_spark_testing.timed_log import START_MS, Properties, flipped, sealed, write_timed_log
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

pytestmark = pytest.mark.core

TOPICS = ("Orders", names.TIMER_TOPIC, names.SCHEDULE_TOPIC, names.MARKS_TOPIC, "%RETRY%g", names.SCHEDULE_DLQ_TOPIC)
numbers = st.one_of(st.integers(0, 99), st.integers(START_MS, START_MS + 10**12), st.integers(0, MAX_NUMBER))
details = st.dictionaries(st.sampled_from(["run", "limit"]), st.sampled_from(["", "3", "a.b"]), max_size=2)


@st.composite
def statements(draw: st.DrawFn) -> tuple[str, Properties]:
    """Return a topic, and properties that contain a sound, misplaced, damaged or invalid statement of each kind."""
    due, identity, record, following = (draw(numbers) for _ in range(4))
    kind = draw(st.sampled_from(TimedMarkKind))
    ends, carried = draw(st.booleans()), draw(st.booleans())
    queue = draw(st.sampled_from([None, None, (3, 7), (MAX_NUMBER, 7)]))
    more = draw(details) if draw(st.booleans()) else {}
    shift, manner = (
        draw(st.sampled_from([0, 0, 0, 5])),
        draw(st.sampled_from(["sound", "sound", "flip", "cut", "none"])),
    )
    mark_manner = draw(st.sampled_from(["sound", "sound", "flip", "cut", "none"]))
    bit = draw(st.integers(0, 8 * 150))
    group_kind = draw(st.sampled_from([None, None, *GroupMarkKind]))
    group_names = draw(st.sampled_from([("Later", "spring"), ("Later", ""), ("", ""), ("ä", "\udcff:")]))
    extra = draw(st.sampled_from([{}, {"TIMER_OUT_MS": "1790000000123"}, {"TIMER_OUT_MS": "soon", "DELAY": "2"}]))
    rolled, recalls = draw(st.booleans()), draw(st.booleans())

    def properties(place: int) -> dict[str, str | bytes]:
        found: dict[str, str | bytes] = {"KEYS": "k", **extra}
        at = place + shift
        mark: TimedMark | GroupMark = TimedMark(
            place=at, kind=kind, decided_ms=due, identity=identity, record=record, due_ms=due,
            next_due_ms=None if ends else following, queue=queue, details=more,
        )  # fmt: skip
        if group_kind is not None:
            mark = GroupMark(
                place=at, kind=group_kind, decided_ms=due, topic=group_names[0], group=group_names[1],
                next_due_ms=None if ends else following,
            )  # fmt: skip
        texts = {
            names.DUE: (manner, str(TimedDue(at, due, identity if carried else at, more if carried else {}))),
            names.MARK: (mark_manner, str(mark)),
        }
        for name, (how, text) in texts.items():
            if how == "flip":
                damaged = flipped(text, bit % (8 * len(text)))
                # A separator would end the property; the reader and the data source then have no statement at all.
                found[name] = text if {0, 1, 2} & set(damaged) else damaged
            elif how != "none":
                found[name] = text if how == "sound" else text[:-3]
        if rolled:
            found["TIMER_ROLL_TIMES"] = "1"
        if recalls:
            found["TIMER_DEL_UNIQKEY"] = "LaterK"
        return found

    return draw(st.sampled_from(TOPICS)), properties


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(statements(), min_size=1, max_size=20))
def test_columns_of_arbitrary_statements_equal_those_of_the_parsers(
    tmp_path: Path, records: list[tuple[str, Properties]]
) -> None:
    write_timed_log(tmp_path, records)
    found = [comparable(row) for row in source_rows(tmp_path)]
    assert found == list(reader_rows(tmp_path))


def due_of(place: int) -> str:
    return str(TimedDue(place, START_MS + 5_000, place))


def mark_of(place: int) -> str:
    return str(
        TimedMark(
            place=place, kind=TimedMarkKind.DELIVERED, decided_ms=START_MS, identity=17, record=17, due_ms=START_MS + 1
        )
    )


def test_each_flipped_bit_is_corrected(tmp_path: Path) -> None:
    def damaged(name: str, text_at: Any, bit: int) -> Properties:
        return lambda place: {name: flipped(text_at(place), bit), "KEYS": "k"}

    bits = [(due_of, names.DUE, bit) for bit in range(8 * len(due_of(0)))]
    bits += [(mark_of, names.MARK, bit) for bit in range(8 * len(mark_of(0)))]
    kept = [each for each in bits if not {0, 1, 2} & set(flipped(each[0](0), each[2]))]
    assert len(kept) > 900
    places = write_timed_log(tmp_path, [(names.TIMER_TOPIC, damaged(name, of, bit)) for of, name, bit in kept])
    rows = source_rows(tmp_path, columns="due_time,timer_record,identity,mark,mark_identity,mark_due_time")
    assert [row["mark"] for row in rows] == ["delivered" if name == names.MARK else None for _, name, _ in kept]
    assert {row["mark_identity"] for row in rows} == {17, None}
    for (_, name, _), place, row in zip(kept, places, rows, strict=True):
        if name == names.DUE:
            assert round(row["due_time"].timestamp() * 1000) == START_MS + 5_000
            assert (row["timer_record"], row["identity"]) == ("stated", place)
        else:
            assert row["timer_record"] == "unstated"


def test_each_record_of_the_timer_topic_has_its_kind(tmp_path: Path) -> None:
    out_ms = {names.TIMER_OUT_MS: str(START_MS + 9_000)}
    records: list[tuple[str, Properties]] = [
        (names.TIMER_TOPIC, lambda place: {names.DUE: due_of(place), **out_ms}),
        (names.TIMER_TOPIC, lambda place: {names.DUE: str(TimedDue(place, START_MS, 0)), **out_ms}),
        (names.TIMER_TOPIC, lambda place: {names.DUE: due_of(0), **out_ms, names.TIMER_ROLL_TIMES: "1"}),
        (names.TIMER_TOPIC, lambda place: out_ms),
        (names.TIMER_TOPIC, lambda place: {**out_ms, names.TIMER_ROLL_TIMES: "1"}),
        (names.TIMER_TOPIC, lambda place: {names.DUE: due_of(place)[:-2] + "xx", **out_ms}),
        (names.TIMER_TOPIC, lambda place: {}),
        ("Orders", lambda place: {names.DUE: due_of(0), **out_ms}),
    ]
    places = write_timed_log(tmp_path, records)
    rows = source_rows(tmp_path)
    assert [row["timer_record"] for row in rows] == (
        ["stated", "carried", "rolled", "unstated", "rolled", "unstated", "unstated", None]
    )
    assert [row["identity"] for row in rows] == [places[0], 0, 0, *places[3:7], None]
    assert [row["kind"] for row in rows] == ["delayed"] * 7 + ["delivered"]
    assert rows[-1]["mark_identity"] == 0
    dues = [row["due_time"] and round(row["due_time"].timestamp() * 1000) - START_MS for row in rows]
    assert dues == [5_000, 0, 9_000, 9_000, 9_000, 9_000, None, None]


NEWER: list[tuple[str, Any]] = [
    (names.DUE, lambda place: sealed(3, place, "whatever")),
    (names.DUE, lambda place: sealed(2, place, "1:2")),
    (names.MARK, lambda place: sealed(3, place, "whatever")),
    (names.MARK, lambda place: sealed(2, place, f"exploded:{START_MS}:0::{START_MS}:::")),
]


@pytest.mark.parametrize(("name", "text_at"), NEWER)
@pytest.mark.parametrize("columns", ["kind", "due_time,mark"])
def test_own_statement_of_an_unknown_form_is_an_error(tmp_path: Path, name: str, text_at: Any, columns: str) -> None:
    write_timed_log(tmp_path, [(names.TIMER_TOPIC, lambda place: {name: text_at(place)})])
    with pytest.raises(NewerFormError, match="contains a statement of an unknown form"):
        source_rows(tmp_path, columns=columns)


@pytest.mark.parametrize(("name", "text_at"), NEWER)
def test_statement_of_an_unknown_form_about_another_place_is_ignored(tmp_path: Path, name: str, text_at: Any) -> None:
    write_timed_log(tmp_path, [(names.TIMER_TOPIC, lambda place: {name: text_at(place + 1)})])
    (row,) = source_rows(tmp_path)
    assert (row["mark"], row["mark_identity"], row["due_time"]) == (None, None, None)


@pytest.mark.parametrize("job", ["delay", "traffic"])
def test_job_stops_with_a_sentence_at_a_statement_of_an_unknown_form(
    spark: SparkSession, tmp_path: Path, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_timed_log(
        tmp_path,
        [("Orders", lambda _: {}), (names.TIMER_TOPIC, lambda place: {names.DUE: sealed(3, place, "x" * 900)})],
    )
    assert run([job, "--store", str(tmp_path)]) == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"delaymq-spark: {tmp_path}/commitlog/")
    assert error.endswith("use the version of delaymq-spark that belongs to the broker, or a later one")
