"""Records of the runs of repeating messages: copies, and marks of runs that are skipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from delaymq.broker.delivery.copying.copies import mark_alone
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.message.run_ids import run_id
from delaymq.message.timed_marks import RUN, TimedMark, TimedMarkKind
from delaymq.schedule.timeline import Pending
from delaymq.store.model import NewRecord, again

_ROOM_BYTES: Final = 192
"""Additional properties that a copy needs, besides those of all timed messages and the unique id of the schedule."""
_NOT_ON_COPIES: Final = (*names.SCHEDULE_PROPERTIES, names.DUE, names.MARK, names.ACCOUNT)


def room_bytes(properties: Mapping[str, str]) -> int:
    """Return the size of the properties that a copy may need, in addition to those that any timed message needs."""
    return _ROOM_BYTES + len(properties.get(names.UNIQUE_KEY, "").encode("utf-8", "surrogateescape"))


def run_copy(record: Record, pending: Pending, run: int, run_ms: int, next_ms: int | None, now_ms: int) -> NewRecord:
    """Return the copy that delivers run number `run`, whose time is `run_ms`.

    Its mark lets the message be due at `next_ms` or, without it, ends the message. The copy is a message of its own,
    with a unique id of its own. IllegalMessageError if it does not fit.
    """
    properties = record.properties
    for name in _NOT_ON_COPIES:
        properties.pop(name, None)
    schedule_id = properties.get(names.UNIQUE_KEY, "")
    properties[names.UNIQUE_KEY] = run_id(schedule_id, pending.identity, run)
    properties[names.DELAY_SCHEDULE_ID] = schedule_id
    properties[names.DELAY_RUN] = str(run)
    properties[names.TIMER_OUT_MS] = str(run_ms)
    topic, queue_id = properties[names.REAL_TOPIC], int(properties[names.REAL_QUEUE_ID])
    mark = _mark(pending, TimedMarkKind.DELIVERED, next_ms, now_ms, {RUN: str(run)})
    return again(record, topic, queue_id, properties, mark.statement(), body_crc=record.body_crc)


def skipping_mark(
    record: Record, pending: Pending, kind: TimedMarkKind, next_ms: int | None, now_ms: int, run: int | None = None
) -> NewRecord:
    """Return a mark alone that lets a message be due at `next_ms`, or ends it; `run` is a run that took place."""
    details = {} if run is None else {RUN: str(run)}
    statement = _mark(pending, kind, next_ms, now_ms, details).statement()
    return mark_alone(pending.identity, record.properties, statement, now_ms, record.store_host)


def _mark(
    pending: Pending, kind: TimedMarkKind, next_ms: int | None, now_ms: int, details: Mapping[str, str]
) -> TimedMark:
    return TimedMark(
        place=0,
        kind=kind,
        decided_ms=now_ms,
        identity=pending.identity,
        record=pending.record,
        due_ms=pending.due_ms,
        next_due_ms=next_ms,
        details=details,
    )
