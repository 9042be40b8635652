"""Carrying forward: pending timed messages of the oldest segments are appended again, so that these can be deleted.

The new record states the same due time and the identity of the message, so order and history do not change. A segment
is deleted when no record in it holds a pending message, as of a time up to which the log is on disk (`pin`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from delaymq.broker.delivery.timed.replay import own_due
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.record import Record
from delaymq.message.timed_marks import carried_due
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.store.consume_queue import BLANK_SIZE, ENTRY, ENTRY_BYTES
from delaymq.store.errors import StoreError
from delaymq.store.model import NewRecord
from delaymq.store.retention import ExpiredLog
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.broker.delivery.reader import DeliveryStore

_ENTRIES: Final = 256
"""Entries of the timer topic's queue that one step reads."""
_CARRIED_AT_ONCE: Final = 16
"""Messages that one step carries: some 2 ms."""
_SOON_MS: Final = 600_000
"""Messages due within this time are not carried, because they are delivered before their segment is deleted. Messages
that have been overdue for longer are paused or cannot be delivered."""
_PASS_INTERVAL_MS: Final = 30_000
_TARGET_INTERVAL_MS: Final = 1_000
_LEAST_BYTES_PER_SECOND: Final = 256 * 1024
_HASTE: Final = 2
"""Factor by which carrying is faster than necessary, because messages that are added meanwhile are not counted."""


class CarrySettings(Protocol):
    """Settings of carrying."""

    @property
    def timer_carry_max_bytes_per_second(self) -> int:
        """Limit of the bytes that are appended again per second."""


class Carrier:
    """Carries messages in steps; call `step` repeatedly."""

    def __init__(
        self,
        store: DeliveryStore,
        timeline: Timeline,
        settings: CarrySettings,
        now_ms: Callable[[], int],
        give_up: Callable[[Pending, int], None],
    ) -> None:
        """`give_up` ends a pending message whose record cannot be read."""
        self.settings = settings
        self.carried_messages = 0
        """Messages carried since the start."""
        self.carried_bytes = 0
        """Bytes of their records."""
        self.backlog = 0
        """Number of records in expired segments that still hold pending messages."""
        self._store = store
        self._timeline = timeline
        self._give_up = give_up
        self._throttled = ThrottledLogger(logging.getLogger(__name__), now_ms)
        self._expired = ExpiredLog(0, 0, is_urgent=False)
        self._expired_at_ms: int | None = None
        self._offset = 0
        self._pass_at_ms = 0
        self._earliest_due_ms = 0
        self._allowance_bytes = 0.0
        self._allowed_at_ms: int | None = None

    def step(self, now_ms: int) -> bool:
        """Carry some messages if necessary; return whether to continue soon. TimelineDamagedError, OSError."""
        first = self._timeline.holders.first()
        if first is None:
            self.backlog = 0
            return False
        self._look(now_ms)
        end = self._expired.end
        self.backlog = self._timeline.holders.below(end)
        if first >= end or self._is_useless(end) or not self._begin_pass(now_ms) or not self._may_write(now_ms):
            return False
        return self._carry_some(end, now_ms)

    def _look(self, now_ms: int) -> None:
        looked_ms = self._expired_at_ms
        if looked_ms is None or not looked_ms <= now_ms < looked_ms + _TARGET_INTERVAL_MS:
            self._expired_at_ms = now_ms
            self._expired = self._store.expired_log(now_ms)

    def _is_useless(self, end: int) -> bool:
        """Whether carrying the only segment, which is deleted early on a full disk, would free less than half of it."""
        return self._expired.is_early and self._expected_bytes() * 2 > end - self._store.min_offset

    def _expected_bytes(self) -> int:
        """Return the approximate size of the records that are to be carried."""
        timed = self._timeline.partitions.of_level(0)
        return self.backlog * timed.bytes // max(timed.messages, 1)

    def _begin_pass(self, now_ms: int) -> bool:
        """Return whether a pass over the queue is in progress or begins now."""
        if self._offset:
            return True
        if now_ms < self._pass_at_ms <= now_ms + _PASS_INTERVAL_MS:
            return False
        self._offset, _ = self._store.queue_bounds(names.TIMER_TOPIC, 0)
        # Entries that are due earlier are not pending, or being delivered.
        dues = [pending.due_ms for pending in self._timeline.taken_messages]
        dues += [
            due_ms for due_ms in (self._timeline.next_due_ms(), self._timeline.paced_due_ms()) if due_ms is not None
        ]
        self._earliest_due_ms = min(dues, default=now_ms)
        return True

    def _end_pass(self, now_ms: int) -> None:
        self._offset = 0
        self._pass_at_ms = now_ms + _PASS_INTERVAL_MS

    def _may_write(self, now_ms: int) -> bool:
        rate = most = self.settings.timer_carry_max_bytes_per_second
        if not self._expired.is_urgent and self._expired.left_ms > 0:
            necessary = self._expected_bytes() * 1_000 * _HASTE // self._expired.left_ms
            rate = min(max(necessary, _LEAST_BYTES_PER_SECOND), most)
        before_ms, self._allowed_at_ms = self._allowed_at_ms, now_ms
        if before_ms is not None and now_ms > before_ms:
            self._allowance_bytes += (now_ms - before_ms) * rate / 1_000
        self._allowance_bytes = min(self._allowance_bytes, rate)
        return self._allowance_bytes > 0

    def _carry_some(self, end: int, now_ms: int) -> bool:
        entries = self._store.read_entries(names.TIMER_TOPIC, 0, self._offset, _ENTRIES)
        carried = 0
        for place, size, due_ms in ENTRY.iter_unpack(entries[: len(entries) // ENTRY_BYTES * ENTRY_BYTES]):
            if place >= end:
                entries = b""
                break
            if carried >= _CARRIED_AT_ONCE or self._allowance_bytes <= 0:
                return True
            if place >= self._store.min_offset and size != BLANK_SIZE and due_ms >= self._earliest_due_ms:
                try:
                    written = self._carry(place, due_ms, now_ms)
                except (StoreError, IllegalMessageError) as error:
                    self._throttled.warning("pending timed messages cannot be carried forward: %s", error)
                    self._end_pass(now_ms)
                    return False
                carried += written > 0
                self._allowance_bytes -= written
            self._offset += 1
        if not entries:
            self._end_pass(now_ms)
            return False
        return True

    def _carry(self, place: int, due_ms: int, now_ms: int) -> int:
        """Carry the message that the record at `place` holds, if any; return the size of the new record."""
        record = self._store.record_at(place)
        if record is None:
            self._give_up_at(place, due_ms, now_ms)
            return 0
        pending = self._held_by(record)
        if pending is None or (not self._expired.is_urgent and abs(pending.due_ms - now_ms) < _SOON_MS):
            return 0
        appended = self._store.append(carried_record(record, pending))
        self.carried_messages += 1
        self.carried_bytes += appended.size
        return appended.size

    def _held_by(self, record: Record) -> Pending | None:
        properties = record.properties
        text = properties.get(names.DUE)
        due = None if text is None else own_due(text, record.physical_offset)
        identity = record.physical_offset if due is None else due.identity
        timeline = self._timeline
        pending = timeline.taken(identity)
        partition = timeline.partitions.find(properties.get(names.REAL_TOPIC, ""))
        if pending is None and partition is not None:
            due_text = properties.get(names.TIMER_OUT_MS, "")
            due_ms = due.due_ms if due is not None else int(due_text) if due_text.isdigit() else -1
            pending = timeline.find(due_ms, identity, partition)
        return pending if pending is not None and pending.record == record.physical_offset else None

    def _give_up_at(self, place: int, due_ms: int, now_ms: int) -> None:
        """End the message of an unreadable record, which would keep its segment and all later ones."""
        pending = self._timeline.held_at(place, due_ms)
        if pending is not None:
            self._give_up(pending, now_ms)


def carried_record(record: Record, pending: Pending) -> NewRecord:
    """Return the record that carries a pending message forward from `record`, which holds it. IllegalMessageError."""
    properties = record.properties
    text = properties.pop(names.DUE, "")
    due = own_due(text, record.physical_offset)
    return NewRecord(
        names.TIMER_TOPIC,
        0,
        record.body,
        properties,
        record.flag,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        is_copy=True,
        statement=carried_due(pending.due_ms, pending.identity, due.details if due is not None else {}),
        uses_reserve=True,
    )
