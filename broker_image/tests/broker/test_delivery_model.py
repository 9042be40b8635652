"""Random histories of a store, against a plain list: sends, deliveries, table changes, clocks, failures, crashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from delaymq.broker.delivery import Delivery, delay_rewrite, hand_over, recovery
from delaymq.broker.delivery.changes import changes, fates, lookup
from delaymq.broker.delivery.changes.changes import Changed, Changes, moved_record
from delaymq.broker.delivery.changes.lookup import Lookup, stated_by
from delaymq.broker.delivery.copying.copies import copy_of, timed_copy_of
from delaymq.broker.delivery.level_entries import add_entries
from delaymq.broker.delivery.reader import Found
from delaymq.broker.delivery.repeating import copies as copies_of_runs
from delaymq.broker.delivery.repeating import history, runs
from delaymq.broker.delivery.repeating.copies import run_copy, skipping_mark
from delaymq.broker.delivery.repeating.runs import Repeating
from delaymq.broker.delivery.repeating.schedules import Interval, Plan, Schedule
from delaymq.broker.delivery.timed import carrying, replay
from delaymq.broker.delivery.timed.carrying import carried_level_record, carried_record
from delaymq.message import names
from delaymq.message.names import TIMER_TOPIC
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedDue, first_due
from delaymq.schedule import Entry
from delaymq.schedule.timeline import PacedTimeline, Pending, Timeline, entries, state, timeline
from delaymq.schedule.timeline.rebuilding import Rebuilding
from delaymq.store.errors import StoreFullError
from delaymq.store.index import key_index
from delaymq.store.model import Dispatched, NewRecord
from delaymq_testing.broker.delivery_harness import START_MS, Bench
from delaymq_testing.broker.delivery_life import Life, run_to_the_end
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

RUNS = range(max(FUZZ_INPUTS // 400, 1))
"""By default, 50 runs of 150 steps; `make test-long-fuzz` performs 337,500 steps."""
MAX_RUNS_UNTIL_FOUND = 200


@pytest.mark.parametrize("run", RUNS)
def test_each_message_is_delivered_once_and_never_early(run: int) -> None:
    run_to_the_end(Life(SEED * 1_000_003 + run))


def _nothing(*_: object, **__: object) -> None:
    """Replaces a method whose effect is omitted."""


def _carried_as_new(record: Record, pending: Pending) -> NewRecord:
    copy = carried_record(record, pending)
    return copy._replace(statement=first_due(pending.due_ms))


def _without_mark(*given: Any, **named: Any) -> Any:
    fate, copy = timed_copy_of(*given, **named)
    return fate, copy._replace(statement=None)


def _carried_level_as_new(*given: Any) -> NewRecord:
    return carried_level_record(*given)._replace(statement=None)


def _without_identities(*given: Any) -> list[int]:
    given[-1].clear()
    return add_entries(*given)


def _level_without_mark(*given: Any, **named: Any) -> Any:
    fate, copy = copy_of(*given, **named)
    del copy.properties["__DMQ_MARK"]
    return fate, copy._replace(property_bytes=None)


def _without_levels(self: recovery.Replay, state: object) -> None:
    _restore(self, state)
    self._has_levels = False


def _early(self: Timeline, now_ms: int, count: int) -> list[Entry]:
    return _take(self, now_ms + 400, count)


def _ended(self: Timeline, entry: Pending, due_ms: int) -> None:
    self.end(entry.due_ms, entry.identity, entry.partition)


def _changed_to_an_end(self: Rebuilding, identity: int, place: int, due_ms: int | None) -> None:
    _change(self, identity, place, None)


def _without_replaced(self: replay.TimedReplay, record: Dispatched) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimedDue, "replaced", None)
        _entry(self, record)


def _without_queue(self: Changes, found: Found, *given: Any) -> Changed:
    record = replace(found.record, topic=TIMER_TOPIC)
    return _mark(self, found._replace(record=record), *given)


def _moved_without_mark(*given: Any) -> NewRecord:
    record = moved_record(*given)
    del record.properties["__DMQ_MARK"]
    return record


def _carried_with_first_due(record: Record, pending: Pending) -> NewRecord:
    return carried_record(record, pending._replace(due_ms=stated_by(record.properties, record.physical_offset)[1]))


def _appended_anyway(self: Changes, record: NewRecord) -> tuple[int, int]:
    try:
        return _append(self, record)
    except StoreFullError:
        return self._store.last_offset, self._store.end_offset


def _run_without_next(*given: Any) -> NewRecord:
    record, pending, run, run_ms, _, now_ms = given
    return run_copy(record, pending, run, run_ms, None, now_ms)


def _skipping_without_next(*given: Any) -> NewRecord:
    record, pending, kind, _, *rest = given
    return skipping_mark(record, pending, kind, None, *rest)


def _plan_without(limit: str) -> Callable[..., Plan]:
    def plan(self: Schedule, *given: Any, **named: Any) -> Plan:
        kept = {name: getattr(self, name) for name in ("rhythm", "until_ms", "runs", "missed", "late_ms")}
        return _plan(Schedule(**{**kept, limit: None}), *given, **named)

    return plan


def _appended_or_raised(self: Changes, record: NewRecord) -> tuple[int, int]:
    appended = self._store.append(record)
    return appended.physical_offset, appended.physical_offset + appended.size


_append, _mark, _change, _entry = Changes._append, Changes._mark, Rebuilding.change, replay.TimedReplay.entry
_take, _plan = Timeline.take, Schedule.plan
_restore = recovery.Replay.restore
BUGS: dict[str, tuple[object, str, object]] = {
    "messages are taken before they are due": (Timeline, "take", _early),
    "a delivered message stays in the index": (Timeline, "settle", _nothing),
    "messages that the full store rejected are forgotten": (Timeline, "give_back", _nothing),
    "marks after the snapshot are ignored": (Timeline, "end", _nothing),
    "marks are ignored when the whole log is replayed": (Rebuilding, "change", _nothing),
    "a snapshot omits what waits for another attempt": (Timeline, "taken_messages", property(lambda self: [])),
    "a carried message is a new one": (carrying, "carried_record", _carried_as_new),
    "copies have no mark": (hand_over, "timed_copy_of", _without_mark),
    "the rest of a spread is forgotten": (PacedTimeline, "end", _nothing),
    "damaged states are believed": (state, "crc32", lambda data: 0),
    "the index of the snapshot is ignored": (
        state,
        "restore",
        lambda files, reference, *rest: state.empty(files, *rest),
    ),
    "copies with a delay level have no mark": (hand_over, "copy_of", _level_without_mark),
    "a settled entry from before the snapshot stays in the index": (recovery, "end_entry", _nothing),
    "entries after the snapshot are not in the index": (recovery.Replay, "add_levels", _nothing),
    "entries before the snapshot are added again": (recovery.Replay, "restore", _without_levels),
    "a carried message with a delay level is a new one": (carrying, "carried_level_record", _carried_level_as_new),
    "carried messages with a delay level keep no identity": (recovery, "add_entries", _without_identities),
    "a carried message with a delay level stays at its earlier place": (recovery, "end_carried", _nothing),
    "ended entries are forgotten by the next run": (entries, "packed_end", lambda due_ms, identity: b""),
    "a cancelled message stays in the index": (Changes, "end", _nothing),
    "a moved message stays where it is in the index": (Timeline, "move", _nothing),
    "moves after the snapshot are ends": (Timeline, "move", _ended),
    "moves are ends when the whole log is replayed": (Rebuilding, "change", _changed_to_an_end),
    "a replaced message stays pending": (Delivery, "_replace", _nothing),
    "a start does not know which message was replaced": (replay.TimedReplay, "entry", _without_replaced),
    "several messages have one key": (Lookup, "pending_with_key", _nothing),
    "keys of all topics are one": (lookup, "indexed_delay_key", lambda topic, key: f"orders#{key}"),
    "a moved message is searched for at its first due time": (Lookup, "newest_mark", _nothing),
    "a cancelled message with a delay level stays in its queue": (Changes, "_mark", _without_queue),
    "a moved message with a delay level stays in its queue": (changes, "moved_record", _moved_without_mark),
    "a carried message is due when it was at first": (carrying, "carried_record", _carried_with_first_due),
    "a message is touched for the delay of another level": (changes, "original_delay_ms", lambda *given: 1_000),
    "a change that the store rejected is made": (Changes, "_append", _appended_anyway),
    "a change whose later step failed is not made": (Changes, "_append", _appended_or_raised),
    "late messages are delivered although they expired": (hand_over, "expiry_ms", _nothing),
    "a message that will be dropped keeps another one out": (delay_rewrite, "expiry_ms", _nothing),
    "delivered messages are unknown": (fates, "_copied", _nothing),
    "a repeating message ends with its first run": (runs, "run_copy", _run_without_next),
    "a repeating message is not moved to its next run": (Repeating, "done", _nothing),
    "runs are counted from the start of the broker": (history, "newest_run", _nothing),
    "a carried repeating message forgets its runs": (carrying.Carrier, "_details", lambda *given: {"run": "0"}),
    "a carried repeating message ends": (carrying.Carrier, "_details", lambda *given: {}),
    "changes of a repeating message are made at its first run": (lookup, "newest_run", _nothing),
    "all missed runs are delivered": (Interval, "latest", lambda self, first_ms, until_ms: first_ms),
    "late runs are delivered": (Schedule, "plan", _plan_without("late_ms")),
    "runs have no last time": (Schedule, "plan", _plan_without("until_ms")),
    "runs have no limit": (Schedule, "plan", _plan_without("runs")),
    "copies of a repeating message repeat": (copies_of_runs, "_NOT_ON_COPIES", (names.DUE, names.MARK)),
    "skipped runs end a repeating message": (runs, "skipping_mark", _skipping_without_next),
}

KNOWN_RUNS = {"a message that will be dropped keeps another one out": (116,)}
"""Runs that find bugs which earlier runs do not find, tried first to save time."""


@pytest.mark.parametrize("bug", BUGS)
def test_model_detects_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BUGS[bug])
    for module in (replay, timeline, key_index):
        if hasattr(module, BUGS[bug][1]):
            monkeypatch.setattr(module, BUGS[bug][1], BUGS[bug][2])
    for run in (*KNOWN_RUNS.get(bug, ()), *range(MAX_RUNS_UNTIL_FOUND)):
        try:
            run_to_the_end(Life(run))
        except Exception:
            return
    pytest.fail(f"not found in {MAX_RUNS_UNTIL_FOUND} runs")


def test_undisturbed_messages_due_together_are_delivered_in_send_order() -> None:
    for seed in range(8):
        random = Random(seed)
        bench = Bench("1s 2s 3s")
        sent: list[tuple[int, int, str]] = []
        for number in range(200):
            level = random.randrange(1, 4)
            bench.send(f"m{number}", level, queue_id=level)
            sent.append((bench.now_ms + level * 1_000, level, f"m{number}"))
            bench.now_ms += random.choice([0, 0, 0, 1, 40])
            if random.random() < 0.05:
                bench.hand_over(random.choice([1, 10]))
            if random.random() < 0.03:
                bench.kill()
                bench.start()
        bench.run_until(bench.now_ms - START_MS + 5_000)
        for level in range(1, 4):
            copies = [record.body.decode() for record in bench.copies() if record.queue_id == level]
            assert copies == [body for _, of_level, body in sent if of_level == level]


class RealBroker:
    """What RocketMQ's own scheduler does with a store: each queue in order, from the position in delayOffset.json."""

    def __init__(self, bench: Bench, positions: dict[int, int]) -> None:
        self.bench = bench
        self.positions = positions

    def deliver(self) -> list[str]:
        delivered = []
        for queue_id in range(3):
            entries = self.bench.store.entries.get(("SCHEDULE_TOPIC_XXXX", queue_id), [])
            position = self.positions.get(queue_id + 1, 0)
            while position < len(entries) and entries[position][2] <= self.bench.now_ms:
                copy = self.bench.store.record_at(self.bench.foreign_deliver(entries[position][0]).physical_offset)
                assert copy is not None
                delivered.append(copy.body.decode())
                position += 1
            self.positions[queue_id + 1] = position
        return delivered

    def file(self) -> bytes:
        pairs = ",".join(f"{level}:{offset}" for level, offset in self.positions.items() if offset)
        return f'{{\n\t"offsetTable":{{{pairs}\n\t}}\n}}'.encode()


@pytest.mark.parametrize("seed", range(20))
def test_store_alternating_between_brokers_delivers_each_message_once(seed: int) -> None:
    random = Random(seed)
    bench = Bench("1s 3s 9s")
    sent: list[str] = []
    delivered: list[str] = []
    for turn in range(8):
        real = None
        if turn % 2:
            bench.stop()
            bench.start()
            assert bench.delivery.corrected == []
            real = RealBroker(bench, bench.delivery.delay_offsets())
        for _ in range(25):
            body, level = f"m{len(sent)}", random.randrange(1, 4)
            if real is None:
                bench.send(body, level)
            else:
                bench.foreign_send(body, level)
            sent.append(body)
            bench.now_ms += random.randrange(300)
            if random.random() < 0.3:
                delivered += bench.hand_over(random.choice([1, 100])) if real is None else real.deliver()
            if real is not None and random.random() < 0.2:
                bench.files["delayOffset.json"] = real.file()
        if real is not None:
            if random.random() < 0.5:  # a clean stop; otherwise the file is as old as it happens to be
                bench.files["delayOffset.json"] = real.file()
            if random.random() < 0.5:
                bench.snapshot = None
            bench.kill()
            bench.start()
    bench.now_ms += 10_000
    delivered += bench.hand_over()
    assert sorted(delivered) == sorted(sent)
