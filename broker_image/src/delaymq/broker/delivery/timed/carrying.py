"""Carrying forward: pending messages of the oldest segments are appended again, so that these can be deleted.

The new record states the same due time and the identity of the message, so order and history do not change. A message
with a delay level gets a new entry in its queue, whose record settles the earlier one. A segment is deleted when no
record in it holds a pending message, as of a time up to which the log is on disk (`pin`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from delaymq.broker.delivery.level_entries import find_held
from delaymq.broker.delivery.queue_state import QueueState
from delaymq.broker.delivery.timed.replay import is_schedule
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError, KeysUnknownError
from delaymq.message.marks import format_due
from delaymq.message.record import Record
from delaymq.message.timed_marks import RUN, TimedMark, TimedMarkKind, carried_due
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.inspection import find_held_at, held_at
from delaymq.store.consume_queue import BLANK_SIZE, ENTRY, ENTRY_BYTES
from delaymq.store.errors import StoreError
from delaymq.store.layout import CHANGED_VERSION, TIMED_VERSION
from delaymq.store.model import NewRecord, Reserve, again
from delaymq.store.retention import ExpiredLog
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.broker.delivery.reader import DeliveryStore, ScheduleReader

_ENTRIES: Final = 256
"""Entries of a queue that one step reads."""
_CARRIED_AT_ONCE: Final = 16
"""Messages that one step carries: some 2 ms."""
_EXAMINED_AT_ONCE: Final = 32
"""Records that one step reads and searches for in the index of keys: some milliseconds."""
_SEARCHED_AT_ONCE: Final = 1_000
"""Pending messages that one step compares with an unreadable record."""
_NO_SEARCH: Final[tuple[int, Iterator[Pending | None]]] = -1, iter(())
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


class PauseMarks(Protocol):
    """Marks of pauses in the log."""

    def oldest(self) -> int | None:
        """Return the lowest physical offset of one; None without any."""

    def carry(self, end: int) -> None:
        """Write some of those before an offset again. StoreError."""


class Carrier:
    """Carries messages in steps; call `step` repeatedly."""

    def __init__(
        self,
        store: DeliveryStore,
        reader: ScheduleReader,
        queues: Mapping[int, QueueState],
        timeline: Timeline,
        settings: CarrySettings,
        now_ms: Callable[[], int],
        give_up: Callable[[Pending, int], None],
        pending_in: Callable[[Record], Pending | None],
        pauses: PauseMarks,
        last_run: Callable[[Record, int], int],
    ) -> None:
        """`queues` are those of the schedule topic. `give_up` ends a pending message whose record cannot be read.

        `pending_in` returns the pending message of a record of the timer topic, in whatever record it is. `last_run`
        returns the number of the last run of a repeating message with this record and identity.
        """
        self.settings = settings
        self.carried_messages = 0
        """Messages carried since the start."""
        self.carried_bytes = 0
        """Bytes of their records."""
        self.backlog = 0
        """Number of records in expired segments that still hold pending messages."""
        self._store = store
        self._reader = reader
        self._queues = queues
        self._timeline = timeline
        self._give_up = give_up
        self._pending_in = pending_in
        self._pauses = pauses
        self._last_run = last_run
        self._throttled = ThrottledLogger(logging.getLogger(__name__), now_ms)
        self._expired = ExpiredLog(0, 0, is_urgent=False)
        self._expired_at_ms: int | None = None
        self._examined = 0
        """Records that this step has read."""
        self._search: tuple[int, Iterator[Pending | None]] = _NO_SEARCH
        """Search for the message that an unreadable record holds, and the offset of that record."""
        self._left: list[tuple[str, int]] = []
        """Queues that the pass over all queues has not completed; the last one is in progress at `_offset`."""
        self._offset = 0
        self._pass_at_ms = 0
        self._earliest_due_ms = 0
        self._allowance_bytes = 0.0
        self._allowed_at_ms: int | None = None

    def step(self, now_ms: int) -> bool:
        """Carry some messages if necessary; return whether to continue soon. TimelineDamagedError, OSError."""
        first, oldest_pause = self._timeline.holders.first(), self._pauses.oldest()
        if first is None:
            self.backlog = 0
        if first is None and oldest_pause is None:
            return False
        self._look(now_ms)
        # A record carries another one forward only if no power failure can lose that one alone.
        end = min(self._expired.end, self._store.durable_offset)
        if oldest_pause is not None and oldest_pause < end:
            self._carry_pauses(end)
        if first is None:
            return False
        self.backlog = self._timeline.holders.below(end)
        if first >= end or self._is_useless(end) or not self._begin_pass(now_ms) or not self._may_write(now_ms):
            return False
        return self._carry_some(end, now_ms)

    def _carry_pauses(self, end: int) -> None:
        try:
            self._pauses.carry(end)
        except StoreError as error:
            self._throttled.warning("the marks of pauses cannot be carried forward: %s", error)

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
        partitions = self._timeline.partitions
        return self.backlog * partitions.bytes // max(partitions.messages, 1)

    def _begin_pass(self, now_ms: int) -> bool:
        """Return whether a pass over the queues is in progress or begins now."""
        if self._left:
            return True
        if now_ms < self._pass_at_ms <= now_ms + _PASS_INTERVAL_MS:
            return False
        self._left = [*((names.SCHEDULE_TOPIC, queue_id) for queue_id in self._queues), (names.TIMER_TOPIC, 0)]
        self._begin_queue()
        # Entries that are due earlier are not pending, or being delivered.
        dues = [pending.due_ms for pending in self._timeline.taken_messages]
        if (due_ms := self._timeline.queues.earliest_due_ms()) is not None:
            dues.append(due_ms)
        self._earliest_due_ms = min(dues, default=now_ms)
        return True

    def _begin_queue(self) -> None:
        topic, queue_id = self._left[-1]
        self._offset, _ = self._store.stored_bounds(topic, queue_id)
        if topic == names.SCHEDULE_TOPIC:
            self._offset = max(self._offset, self._queues[queue_id].settled.low)

    def _end_queue(self, now_ms: int) -> bool:
        """Continue with the next queue; return whether there is one."""
        self._left.pop()
        if self._left:
            self._begin_queue()
            return True
        self._pass_at_ms = now_ms + _PASS_INTERVAL_MS
        return False

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
        topic, queue_id = self._left[-1]
        entries = self._store.read_entries(topic, queue_id, self._offset, _ENTRIES)
        carried, self._examined = 0, 0
        for place, size, due_ms in ENTRY.iter_unpack(entries[: len(entries) // ENTRY_BYTES * ENTRY_BYTES]):
            if place >= end:
                return self._end_queue(now_ms)
            if carried >= _CARRIED_AT_ONCE or self._examined >= _EXAMINED_AT_ONCE or self._allowance_bytes <= 0:
                return True
            if place >= self._store.min_offset and size != BLANK_SIZE:
                try:
                    written = self._carry_if_pending(topic, queue_id, place, due_ms, now_ms)
                except StoreError as error:
                    self._throttled.warning("pending messages cannot be carried forward: %s", error)
                    self._left.clear()
                    self._pass_at_ms = now_ms + _PASS_INTERVAL_MS
                    return False
                if written is None:
                    return True
                carried += written > 0
                self._allowance_bytes -= written
            self._offset += 1
        return True if entries else self._end_queue(now_ms)

    def _carry_if_pending(self, topic: str, queue_id: int, place: int, due_ms: int, now_ms: int) -> int | None:
        """Carry the message of the entry at `_offset`, if it is pending; return the size of the new record.

        None: the entry has to be examined further.
        """
        is_timed = topic == names.TIMER_TOPIC
        if not is_timed:
            if self._offset in self._queues[queue_id].settled:
                return 0
            due_ms = self._reader.due_ms(queue_id, self._offset, due_ms)
        if not self._timeline.holders.at(place) or (due_ms < self._earliest_due_ms and not self._may_be_moved):
            return 0
        self._examined += 1
        record = self._store.record_at(place)
        if record is None:
            return 0 if self._give_up_at(place, due_ms, now_ms) else None
        pending = self._held_by(record) if is_timed else find_held(self._timeline, record, due_ms)
        if pending is None or (
            # A repeating message always has a next run, and may be due soon for ever.
            not self._expired.is_urgent
            and abs(pending.due_ms - now_ms) < _SOON_MS
            and not is_schedule(record.properties, record.physical_offset)
        ):
            return 0
        return self._carry(record, pending, now_ms)

    def _carry(self, record: Record, pending: Pending, now_ms: int) -> int:
        try:
            if record.topic == names.TIMER_TOPIC:
                carried = carried_record(record, pending, self._details(record, pending))
            else:
                queue_offset = self._store.next_queue_offset(record.topic, record.queue_id)
                carried = carried_level_record(record, pending, queue_offset, now_ms)
                if self._store.format_version < TIMED_VERSION:
                    self._store.raise_format_version(TIMED_VERSION)
            appended = self._store.append(carried)
        except (IllegalMessageError, KeysUnknownError) as error:
            place = record.physical_offset
            self._throttled.warning("the message at %d cannot be carried forward: %s", place, error, offset=place)
            return 0
        self.carried_messages += 1
        self.carried_bytes += appended.size
        return appended.size

    def _details(self, record: Record, pending: Pending) -> dict[str, str]:
        """Return what the record that carries a message takes over from marks. KeysUnknownError."""
        if not is_schedule(record.properties, record.physical_offset):
            return {}
        return {RUN: str(self._last_run(record, pending.identity))}

    @property
    def _may_be_moved(self) -> bool:
        """Whether messages may be due at another time than their queue entries state."""
        return self._store.format_version >= CHANGED_VERSION

    def _held_by(self, record: Record) -> Pending | None:
        try:
            pending = self._pending_in(record)
        except KeysUnknownError as error:
            self._throttled.warning("moved messages cannot be carried forward, so their segments are kept: %s", error)
            return None
        return pending if pending is not None and pending.record == record.physical_offset else None

    def _give_up_at(self, place: int, due_ms: int, now_ms: int) -> bool:
        """End the message of an unreadable record, which would keep its segment and all later ones.

        Returns whether this is done. The search for a message that was moved takes many steps.
        """
        searched, search = self._search
        pending = None
        if searched != place:
            pending = held_at(self._timeline, place, due_ms)
            searched, search = place, find_held_at(self._timeline, place) if self._may_be_moved else iter(())
        if pending is None:
            some = [*islice(search, _SEARCHED_AT_ONCE)]
            pending = next((entry for entry in some if entry is not None), None)
            if pending is None and len(some) == _SEARCHED_AT_ONCE:
                self._search = searched, search
                return False
        self._search = _NO_SEARCH
        if pending is not None:
            self._give_up(pending, now_ms)
        return True


def carried_level_record(record: Record, pending: Pending, queue_offset: int, now_ms: int) -> NewRecord:
    """Return the record that carries a message with a delay level forward, to be the entry `queue_offset` of its queue.

    IllegalMessageError.
    """
    properties = record.properties
    properties.pop(names.MARK, None)
    properties[names.DUE] = format_due(pending.due_ms, record.queue_id, queue_offset)
    mark = TimedMark(
        place=0,
        kind=TimedMarkKind.CARRIED,
        decided_ms=now_ms,
        identity=pending.identity,
        record=record.physical_offset,
        due_ms=pending.due_ms,
        next_due_ms=pending.due_ms,
        queue=(record.queue_id, record.queue_offset),
    )
    return again(record, record.topic, record.queue_id, properties, mark.statement(), reserve=Reserve.CARRYING)


def carried_record(record: Record, pending: Pending, details: Mapping[str, str] = MappingProxyType({})) -> NewRecord:
    """Return the record that carries a pending message forward from `record`, which holds it. IllegalMessageError."""
    properties = record.properties
    properties.pop(names.DUE, None)
    properties.pop(names.MARK, None)
    properties[names.TIMER_OUT_MS] = str(pending.due_ms)
    statement = carried_due(pending.due_ms, pending.identity, details)
    return again(record, record.topic, record.queue_id, properties, statement, reserve=Reserve.CARRYING)
