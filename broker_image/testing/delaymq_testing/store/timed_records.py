"""Records of timed messages as a broker appends them, for tests of the store that need no broker."""

from __future__ import annotations

from dataclasses import replace

from delaymq.message.names import (
    MARKS_TOPIC,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    SCHEDULE_DLQ_TOPIC,
    TIMER_OUT_MS,
    TIMER_TOPIC,
)
from delaymq.message.timed_marks import TimedMark, TimedMarkKind, first_due
from delaymq.store.message_store import MessageStore
from delaymq.store.model import Dispatched

from delaymq_testing.store.small_stores import message


class TimedStore:
    """Appends the records of timed messages to a store."""

    def __init__(self, store: MessageStore) -> None:
        store.raise_format_version(2)
        self.store = store

    def schedule(self, unique: str, due_ms: int, *, topic: str = "Orders", queue_id: int = 0) -> Dispatched:
        """Append the record of a pending message."""
        record = message(unique, topic=TIMER_TOPIC, body=b"timed " + unique.encode())
        record.properties.update({REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id), TIMER_OUT_MS: str(due_ms)})
        return self.store.append(record._replace(statement=first_due(due_ms)))

    def deliver(self, pending: Dispatched) -> Dispatched:
        """Append the copy in the real topic."""
        names = pending.properties
        return self._end(pending, TimedMarkKind.DELIVERED, names[REAL_TOPIC], int(names[REAL_QUEUE_ID]))

    def drop(self, pending: Dispatched) -> Dispatched:
        """Append the dead letter."""
        return self._end(pending, TimedMarkKind.DROPPED, SCHEDULE_DLQ_TOPIC, 0)

    def mark(
        self, pending: Dispatched, kind: TimedMarkKind, next_due_ms: int | None = None, run: int | None = None
    ) -> Dispatched:
        """Append a mark alone."""
        record = message("", topic=MARKS_TOPIC, body=b"")._replace(properties={})
        mark = replace(self._mark(pending, kind, next_due_ms), details={} if run is None else {"run": str(run)})
        return self.store.append(record._replace(statement=mark.statement()))

    def _end(self, pending: Dispatched, kind: TimedMarkKind, topic: str, queue_id: int) -> Dispatched:
        unique = pending.properties["UNIQ_KEY"]
        record = message(unique, topic=topic, queue_id=queue_id, body=b"timed " + unique.encode())
        kept = {name: text for name, text in pending.properties.items() if name != "__DMQ_DUE"}
        return self.store.append(record._replace(properties=kept, statement=self._mark(pending, kind).statement()))

    def _mark(self, pending: Dispatched, kind: TimedMarkKind, next_due_ms: int | None = None) -> TimedMark:
        return TimedMark(
            place=0,  # the store adds the place
            kind=kind,
            decided_ms=pending.store_timestamp_ms + 1_000,
            identity=pending.physical_offset,
            record=pending.physical_offset,
            due_ms=pending.tags_code,
            next_due_ms=next_due_ms,
        )
