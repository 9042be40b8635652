"""Hand-over of repeating messages: deliver a run and state the next one, or skip runs, in one record."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from delaymq.broker.delivery.repeating.copies import run_copy, skipping_mark
from delaymq.broker.delivery.repeating.history import LastRuns, Records
from delaymq.broker.delivery.repeating.open_runs import OpenRuns
from delaymq.broker.delivery.repeating.schedules import Missed, Plan, Schedule, schedule_of
from delaymq.broker.delivery.status import DeliveryCounters
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMarkKind
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.inspection import unused_due_ms
from delaymq.store.model import NewRecord

_REMEMBERED: Final = 1_024
"""Messages of which it is known that no more than the permitted number of missed runs is left."""


class Outcome(NamedTuple):
    """Record to append for a due repeating message, and what follows from it."""

    copy: NewRecord
    run: int | None
    """Number of the run that the record delivers; None: it skips runs."""
    run_ms: int
    """Time of that run."""
    next_ms: int | None
    """Due time from then on; None: the message ends."""
    skipped: int
    """Number of skipped runs."""
    limited_up_to_ms: int | None = None
    """Time up to which it is known from then on that not too many missed runs are left; None: unchanged."""


class Repeating:
    """Decides about due repeating messages."""

    def __init__(self, records: Records, timeline: Timeline, counters: DeliveryCounters, open_runs: OpenRuns) -> None:
        self.last_runs = LastRuns(records)
        self._open_runs = open_runs
        self._timeline = timeline
        self._counters = counters
        self._limited: OrderedDict[int, int] = OrderedDict()
        """By identity: time up to which its missed runs are not too many."""

    def outcome(self, record: Record, pending: Pending, now_ms: int, dropped_up_to_ms: int | None) -> Outcome:
        """Return the outcome of a due message, held by `record`. Runs up to `dropped_up_to_ms` are not delivered.

        KeysUnknownError, OSError, TimelineDamagedError. IllegalMessageError if the schedule in the record is not valid
        any more, because it was damaged, or because the database of time zones lacks its zone.
        """
        schedule = schedule_of(record.properties)
        if (found := self._open_runs.newest(record, pending)) is not None:
            return self._restated(schedule, record, pending, found, now_ms)
        last = self.last_runs.number(record, pending.identity)
        # Missed runs are expensive to count.
        is_limited = schedule.missed is not Missed.ALL or pending.due_ms <= self._limited.get(pending.identity, -1)
        if _began_after_end(schedule, record, pending):
            plan = Plan(None, None, 1)
        else:
            plan = schedule.plan(pending.due_ms, now_ms, last, dropped_up_to_ms, is_limited=is_limited)
        limited_ms = None if is_limited else now_ms
        next_ms = self._unused(pending, plan.next_ms)
        if plan.run_ms is None:
            is_dropped = dropped_up_to_ms is not None and pending.due_ms <= dropped_up_to_ms
            kind = TimedMarkKind.DROPPED if is_dropped else TimedMarkKind.EXPIRED
            mark = skipping_mark(record, pending, kind, next_ms, now_ms)
            return Outcome(mark, None, pending.due_ms, next_ms, plan.skipped, limited_ms)
        copy = run_copy(record, pending, last + 1, plan.run_ms, next_ms, now_ms)
        return Outcome(copy, last + 1, plan.run_ms, next_ms, plan.skipped, limited_ms)

    def _restated(
        self, schedule: Schedule, record: Record, pending: Pending, run: tuple[int, int], now_ms: int
    ) -> Outcome:
        """Return the outcome of a message of which a run took place, without a statement of what follows."""
        number, run_ms = run
        next_ms = self._unused(pending, schedule.following(run_ms, run_ms, number))
        mark = skipping_mark(record, pending, TimedMarkKind.DELIVERED, next_ms, now_ms, number)
        return Outcome(mark, None, run_ms, next_ms, 0)

    def _unused(self, pending: Pending, next_ms: int | None) -> int | None:
        return None if next_ms is None else unused_due_ms(self._timeline, pending, next_ms)

    def done(self, outcome: Outcome, pending: Pending) -> None:
        """Apply an outcome whose record is in the log to the index. OSError, TimelineDamagedError."""
        if outcome.run is not None:
            self.last_runs.note(pending.identity, outcome.run)
            self._counters.repeated += 1
        self._counters.skipped += outcome.skipped
        if outcome.limited_up_to_ms is not None:
            self._note_limit(pending.identity, outcome.limited_up_to_ms)
        if outcome.next_ms is None:
            self.last_runs.forget(pending.identity)
            self._limited.pop(pending.identity, None)
            self._timeline.remove(pending)
        else:
            self._timeline.move(pending, outcome.next_ms)

    def _note_limit(self, identity: int, time_ms: int) -> None:
        self._limited[identity] = time_ms
        self._limited.move_to_end(identity)
        if len(self._limited) > _REMEMBERED:
            self._limited.popitem(last=False)


def _began_after_end(schedule: Schedule, record: Record, pending: Pending) -> bool:
    """Return whether a transaction was committed after the last permitted time: its record states the due time."""
    return (
        schedule.until_ms is not None
        and pending.due_ms > schedule.until_ms
        and pending.record == pending.identity
        and record.properties.get(names.TIMER_OUT_MS) == str(pending.due_ms)
    )
