"""Verify, inspect, export and the check for RocketMQ, on stores with timed messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from zlib import crc32

import pytest
from delaymq.message.errors import NewerFormError
from delaymq.message.levels import DelayLevels
from delaymq.message.marks import format_due
from delaymq.message.names import (
    DUE,
    MARK,
    MARKS_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_DELETE_UNIQUE_KEY,
    TIMER_OUT_MS,
    TIMER_TOPIC,
)
from delaymq.message.record import decode_record
from delaymq.message.timed_marks import TimedDue, TimedMarkKind, carried_due
from delaymq.store.consume_queue import ENTRY
from delaymq.store.message_store import MessageStore
from delaymq.store.reader import StoreReader
from delaymq.store.segments import segment_name
from delaymq.store.tools.inspect import inspect
from delaymq.store.tools.record_kinds import Kind, kind_of
from delaymq.store.tools.rocketmq_compat import prospect_for_rocketmq
from delaymq.store.tools.timed_messages import TimedMessage, TimedMessages
from delaymq.store.tools.verify import DAMAGED, SOUND, verify
from delaymq_testing.cli_running import called
from delaymq_testing.store.small_stores import SMALL, message
from delaymq_testing.store.timed_records import TimedStore

Open = Callable[..., MessageStore]
NOW_MS = 1_700_000_000_000
DUE_MS = NOW_MS + 60_000


@pytest.fixture
def filled(open_store: Open, tmp_path: Path) -> Path:
    """Two pending messages, one of each end, a plain message and a moved one; closed."""
    store = open_store()
    timed = TimedStore(store)
    pending = [timed.schedule(f"u{number}", DUE_MS + number, queue_id=1) for number in range(6)]
    store.append(message("plain"))
    timed.deliver(pending[0])
    timed.drop(pending[1])
    timed.mark(pending[2], TimedMarkKind.CANCELLED)
    timed.mark(pending[3], TimedMarkKind.EXPIRED)
    timed.mark(pending[4], TimedMarkKind.MOVED, DUE_MS + 5_000)
    timed.mark(pending[2], TimedMarkKind.MOVED, DUE_MS + 9_000)  # an end is final
    store.close()
    return tmp_path / "store"


def places(path: Path, topic: str = TIMER_TOPIC) -> list[int]:
    return [record.physical_offset for record in StoreReader(path).records() if record.topic == topic]


def rewrite(path: Path, place: int, old: bytes, new: bytes) -> None:
    """Replace bytes of a record; the checksum covers only the body."""
    file = path / "commitlog" / segment_name(place // SMALL.commit_log_file_bytes * SMALL.commit_log_file_bytes)
    data = bytearray(file.read_bytes())
    at = data.index(old, place % SMALL.commit_log_file_bytes)
    assert len(old) == len(new)
    data[at : at + len(old)] = new
    file.write_bytes(data)
    assert decode_record(data, place % SMALL.commit_log_file_bytes)


def test_states_of_timed_messages_follow_from_the_newest_statement(filled: Path) -> None:
    states = TimedMessages()
    for record in StoreReader(filled).records():
        states.take(record)
    assert [(each.queue_offset, each.due_ms - DUE_MS, each.ended) for each in states] == [
        (0, 0, "delivered"), (1, 1, "dropped"), (2, 2, "cancelled"), (3, 3, "expired"), (4, 5_000, None), (5, 5, None),
    ]  # fmt: skip
    assert [each.physical_offset for each in states] == [each.identity for each in states] == places(filled)
    assert states.counts() == {"pending": 2, "cancelled": 1, "delivered": 1, "dropped": 1, "expired": 1}


def test_carried_message_keeps_its_identity_and_state(open_store: Open) -> None:
    store = open_store()
    timed = TimedStore(store)
    first = timed.schedule("u", DUE_MS)
    statement = TimedDue(1, DUE_MS + 1, first.physical_offset).statement()
    carried = message("u", topic=TIMER_TOPIC)._replace(statement=statement)
    second = store.append(carried)
    foreign = store.append(carried._replace(statement=TimedDue(1, DUE_MS + 2, 12).statement()))
    timed.mark(first, TimedMarkKind.CANCELLED)
    states = TimedMessages()
    for each in (first, second, foreign):
        record = store.record_at(each.physical_offset)
        assert record is not None
        states.take(record)
    expected = TimedMessage(
        identity=first.physical_offset,
        physical_offset=second.physical_offset,
        queue_offset=1,
        due_ms=DUE_MS + 1,
        ended=None,
    )
    other = TimedMessage(
        identity=12, physical_offset=foreign.physical_offset, queue_offset=2, due_ms=DUE_MS + 2, ended=None
    )
    assert list(states) == [expected, other]
    mark = store.record_at(foreign.physical_offset + foreign.size)
    assert mark is not None
    states.take(mark)
    assert list(states) == [replace(expected, ended="cancelled"), other]


def test_rocketmqs_copies_and_timers_are_recognised(open_store: Open) -> None:
    store = open_store()
    timed = TimedStore(store)
    first, second = timed.schedule("u0", DUE_MS), timed.schedule("u1", DUE_MS + 1)
    rolled, foreign, adopted, recall = (message(f"f{number}", topic=TIMER_TOPIC) for number in range(4))
    rolled.properties[DUE] = second.properties[DUE]
    copy = message("u0", queue_id=0)
    copy.properties[DUE] = first.properties[DUE]
    foreign.properties[TIMER_OUT_MS] = adopted.properties[TIMER_OUT_MS] = str(DUE_MS + 2)
    recall.properties[TIMER_DELETE_UNIQUE_KEY] = "u9"
    places = [store.append(each).physical_offset for each in (rolled, copy, foreign, adopted, recall)]
    carried = message("f2", topic=TIMER_TOPIC)._replace(statement=carried_due(DUE_MS + 2, places[3]))
    adopting = store.append(carried)
    store.abandon()
    records = list(StoreReader(store.path).records())
    states = TimedMessages()
    for record in records:
        states.take(record)
    assert [(each.identity, each.due_ms - DUE_MS, each.ended) for each in states] == [
        (first.physical_offset, 0, "delivered"), (second.physical_offset, 1, None), (places[3], 2, None),
    ]  # fmt: skip
    assert next(each for each in states if each.identity == places[3]).physical_offset == adopting.physical_offset
    assert states.counts() == {"pending": 2, "delivered": 1, "foreign": 1}
    assert [kind_of(record) for record in records] == [Kind.TIMED] * 3 + [Kind.TIMED_COPY] + [Kind.TIMED] * 4


def test_inspect_counts_timed_messages_under_their_own_names(filled: Path) -> None:
    result = inspect(filled)
    assert result.kinds == {"dead letter": 1, "normal": 1, "timed": 6, "timed copy": 1, "timed mark": 4}
    assert result.topics[MARKS_TOPIC] == {"timed mark": 4}
    assert result.as_json()["timed"] == result.timed
    assert result.timed == {"pending": 2, "cancelled": 1, "delivered": 1, "dropped": 1, "expired": 1}
    shown = called("store", "inspect", str(filled))
    assert "timed messages: 2 pending, 1 cancelled, 1 delivered, 1 dropped, 1 expired" in shown.out
    assert json.loads(called("store", "inspect", str(filled), "--json").out)["timed"] == result.timed


def test_store_without_timed_messages_shows_none(stopped: Path) -> None:
    assert inspect(stopped).timed == {"pending": 0}
    assert "timed" not in called("store", "inspect", str(stopped)).out


def test_check_for_rocketmq_lists_pending_and_ended_timed_messages(filled: Path) -> None:
    prospect = prospect_for_rocketmq(filled, DelayLevels.parse(), NOW_MS)
    offsets = places(filled)
    assert [each.physical_offset for each in prospect.timed_pending] == offsets[4:]
    assert [each.physical_offset for each in prospect.timed_ended] == offsets[:4]
    assert (prospect.repeated, prospect.early, prospect.never) == ([], [], [])
    shown = called("store", "verify", str(filled), "--for-rocketmq")
    assert shown.code == SOUND, shown.out
    assert "2 pending timed messages would never be delivered by RocketMQ 4.9, and on time by 5:" in shown.out
    assert "4 ended timed messages would be delivered again by RocketMQ 5:" in shown.out
    assert f"physical offset {offsets[1]}, due" in shown.out
    assert "once and on time" not in shown.out
    data = json.loads(called("store", "verify", str(filled), "--for-rocketmq", "--json").out)["for_rocketmq"]
    assert data["timed_ended"] == [asdict(each) for each in prospect.timed_ended]


def test_verify_expects_the_due_time_in_queue_entries(filled: Path) -> None:
    result = verify(filled)
    assert (result.exit_code, result.damage, result.rebuildable) == (SOUND, [], [])
    file = filled / "consumequeue" / TIMER_TOPIC / "0" / segment_name(0)
    data = bytearray(file.read_bytes())
    *place, code = ENTRY.unpack_from(data, 3 * ENTRY.size)
    ENTRY.pack_into(data, 3 * ENTRY.size, *place, 0)
    file.write_bytes(data)
    [finding] = verify(filled).rebuildable
    assert (finding.what, finding.offset) == ("queue-differs", 3 * ENTRY.size)
    assert finding.detail == f"entry 3 has tags code 0 instead of {code}"


def test_verify_reports_damaged_statements(filled: Path) -> None:
    """One flipped bit is corrected, more are not: then TIMER_OUT_MS replaces the due time."""
    offsets, [copy] = places(filled), places(filled, "Orders")[1:]
    digits = str(DUE_MS).encode()
    rewrite(filled, offsets[0], b"2:0000", b"2:0001")
    rewrite(filled, offsets[4], f":{DUE_MS + 4}:".encode(), f":{DUE_MS + 4_000}:".encode())
    rewrite(filled, copy, b":delivered:", b":delivures:")
    result = verify(filled)
    assert result.exit_code == SOUND, result.damage
    assert [(finding.what, finding.offset, finding.detail) for finding in result.rebuildable] == [
        ("statement-damaged", offsets[0], f"{DUE} has one flipped bit, which every reader corrects"),
        ("statement-damaged", offsets[4], f"{DUE} is damaged: the due time in TIMER_OUT_MS is used instead"),
        (
            "statement-damaged",
            copy,
            f"{MARK} is damaged: a broker compares the record with the pending messages instead",
        ),
    ]
    assert inspect(filled).timed["pending"] == 3
    rewrite(filled, offsets[4], digits[:-1] + b"4", b"no number here"[: len(digits)])
    rewrite(filled, offsets[4], f"{DUE_MS + 4_000}".encode(), b"x" * len(digits))
    result = verify(filled)
    assert (result.exit_code, [each.what for each in result.damage]) == (DAMAGED, ["statement-damaged"])


def test_verify_reports_a_store_that_an_older_program_would_open(filled: Path) -> None:
    path = filled / "delaymq/state.json"
    path.write_bytes(path.read_bytes().replace(b'"minimumReader":2', b'"minimumReader":1'))
    [finding] = verify(filled).rebuildable
    assert (finding.what, finding.file) == ("format-version", "delaymq/state.json")
    assert "minimumReader is 1, but the log contains timed messages" in finding.detail


@pytest.mark.parametrize("kind", ["due", "mark"])
def test_newer_form_is_reported_by_each_tool(filled: Path, kind: str) -> None:
    place = places(filled)[5] if kind == "due" else places(filled, "Orders")[1]
    record = StoreReader(filled).record_at(place)
    assert record is not None
    old = record.properties[DUE if kind == "due" else MARK]
    newer = "3" + old[1 : old.rindex(":")]
    rewrite(filled, place, old.encode(), f"{newer}:{crc32(newer.encode()):08x}".encode())
    result = verify(filled)
    assert (result.exit_code, [each.what for each in result.damage]) == (DAMAGED, ["newer-form"])
    with pytest.raises(NewerFormError, match="use the version that wrote the store"):
        inspect(filled)
    for words in (["inspect"], ["verify", "--for-rocketmq"], ["export", "--delayed"]):
        shown = called("store", words[0], str(filled), *words[1:])
        assert shown.code in (1, 2)
        assert "has a form that this program does not know: use the version that wrote the store" in shown.err


def test_export_shows_due_times_and_marks(filled: Path) -> None:
    lines = [json.loads(line) for line in called("store", "export", str(filled), "--delayed").lines]
    offsets = places(filled)
    assert [line["dueMs"] for line in lines[:6]] == [DUE_MS + number for number in range(6)]
    assert (lines[0]["topic"], lines[0]["mark"], lines[6]["dueMs"], lines[6]["mark"]) == (TIMER_TOPIC, None, None, None)
    copy, dead = lines[7], lines[8]
    assert copy["mark"] == {
        "kind": "delivered", "physicalOffset": offsets[0], "identity": offsets[0], "dueMs": DUE_MS, "nextDueMs": None,
        "decidedMs": lines[0]["storedMs"] + 1_000,
    }  # fmt: skip
    assert (copy["dueMs"], dead["dueMs"], dead["mark"]["kind"]) == (DUE_MS, DUE_MS + 1, "dropped")
    assert len(lines) == 9
    of_topic = called("store", "export", str(filled), "--delayed", "--topic", "Orders")
    assert len(of_topic.lines) == 8
    assert len(called("store", "export", str(filled)).lines) == 3


def test_export_shows_due_times_and_marks_of_delay_levels(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    delayed = message("u", topic=SCHEDULE_TOPIC, queue_id=3)
    delayed.properties[DUE] = format_due(DUE_MS, 3, 0)
    pending = store.append(delayed)
    copy = message("u")
    copy.properties.update({DUE: format_due(DUE_MS, 3, 0), MARK: f"delivered:3:0:{pending.physical_offset}"})
    store.append(copy)
    store.close()
    lines = [json.loads(line) for line in called("store", "export", str(tmp_path / "store"), "--delayed").lines]
    assert [(line["dueMs"], line["mark"]) for line in lines] == [
        (DUE_MS, None),
        (DUE_MS, {"kind": "delivered", "physicalOffset": pending.physical_offset}),
    ]
