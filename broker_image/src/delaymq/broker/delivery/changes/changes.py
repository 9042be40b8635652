"""Changes of single pending messages: one record in the log each, and the same change of the index."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from delaymq.broker.delivery.changes.appending import append_statement
from delaymq.broker.delivery.copying.copies import mark_alone
from delaymq.broker.delivery.queue_state import QueueState
from delaymq.broker.delivery.reader import DeliveryStore, Found
from delaymq.broker.delivery.repeating.schedules import check_move, first_run_ms
from delaymq.broker.delivery.status import DeliveryCounters
from delaymq.broker.delivery.timed.replay import is_schedule
from delaymq.broker.delivery.timed.requests import TimeRequest, requested_time, state_delay
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.levels import DelayLevels
from delaymq.message.marks import Mark, MarkKind
from delaymq.message.record import IPV4_HOST_BYTES, Record
from delaymq.message.timed_marks import GroupMarkKind, TimedMarkKind, first_due, mark_of
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.inspection import unused_due_ms
from delaymq.store.layout import CHANGED_VERSION
from delaymq.store.model import NewRecord, Reserve, again
from delaymq.throttled_log import ThrottledLogger


class Requester(NamedTuple):
    """The client that requests a change."""

    account: str
    """Empty without access control."""
    host: bytes
    """Its address and port, packed (`message.ids.pack_host`)."""


BROKER: Final = Requester("", bytes(IPV4_HOST_BYTES))
"""The broker itself, or a command on its store."""


class Changed(NamedTuple):
    """A change that was made."""

    kind: TimedMarkKind | GroupMarkKind
    pending: Pending | None
    """State of the message before the change; None for those of a group."""
    due_ms: int | None
    """Due time from now on; None: the message has ended."""
    place: int
    """Physical offset of the record that states the change."""
    end: int
    """Physical offset of its end: the change is safe when the log is on disk up to here."""
    messages: int = 1
    """Number of messages."""


class ChangeSettings(Protocol):
    """Settings of changes."""

    @property
    def timer_max_delay_sec(self) -> int:
        """Longest delay of a timed message, in s."""


class Changes:
    """Makes changes. All methods raise StoreError, OSError and TimelineDamagedError."""

    def __init__(
        self,
        store: DeliveryStore,
        timeline: Timeline,
        queues: Mapping[int, QueueState],
        settings: ChangeSettings,
        counters: DeliveryCounters,
        now_ms: Callable[[], int],
        *,
        is_unchanged: Callable[[Found], bool],
        forget: Callable[[int], None],
        announce: Callable[[int], None],
        check_delay: Callable[[str, int], None],
    ) -> None:
        """`queues` are those of the schedule topic, and `is_unchanged` is that of `Lookup`.

        `forget` is called with the identity of a message that waited for another attempt to deliver it, and `announce`
        with new due times. `check_delay` raises IllegalMessageError if a topic does not allow a delay in ms.
        """
        self.settings = settings
        self._store = store
        self._timeline = timeline
        self._queues = queues
        self._counters = counters
        self._now_ms = now_ms
        self._is_unchanged = is_unchanged
        self._forget = forget
        self._announce = announce
        self._check_delay = check_delay
        self._throttled = ThrottledLogger(logging.getLogger(__name__), now_ms)

    def cancel(self, found: Found, requester: Requester) -> Changed:
        """End a message."""
        return self._mark(found, TimedMarkKind.CANCELLED, None, requester)

    def move(self, found: Found, request: TimeRequest, levels: DelayLevels, requester: Requester) -> Changed:
        """Let a message be due at another time; a time that has passed means now. IllegalMessageError if too late."""
        now_ms = self._now_ms()
        request.check(now_ms, self.settings.timer_max_delay_sec * 1_000)
        due_ms = request.due_ms(now_ms)
        if is_schedule(found.properties, found.record.physical_offset):
            check_move(found.properties, due_ms)
        self._check_delay(found.properties.get(names.REAL_TOPIC, ""), due_ms - now_ms)
        return self._reschedule(found, TimedMarkKind.MOVED, max(due_ms, now_ms), levels, requester)

    def fire(self, found: Found, levels: DelayLevels, requester: Requester) -> Changed:
        """Let a message be due now."""
        return self._reschedule(found, TimedMarkKind.FIRED, self._now_ms(), levels, requester)

    def touch(self, found: Found, levels: DelayLevels, requester: Requester) -> Changed:
        """Restart the delay that a message was sent with, from now, or find the next run of a repeating one from now.

        IllegalMessageError if it exceeds the limit, or if there is no further run.
        """
        record, _, properties = found
        if is_schedule(properties, record.physical_offset):
            run_ms = first_run_ms(properties, self._now_ms())
            return self.move(found, TimeRequest(False, run_ms), levels, requester)
        delay_ms = original_delay_ms(record, properties, levels)
        return self.move(found, TimeRequest(True, delay_ms), levels, requester)

    def _reschedule(
        self, found: Found, kind: TimedMarkKind, due_ms: int, levels: DelayLevels, requester: Requester
    ) -> Changed:
        pending = found.pending
        if self._timeline.partitions.key(pending.partition).level:
            return self._move_from_level(found, kind, due_ms, levels)
        if not self._is_unchanged(found):
            due_ms = unused_due_ms(self._timeline, pending, due_ms)
        return self._mark(found, kind, due_ms, requester)

    def _mark(self, found: Found, kind: TimedMarkKind, next_due_ms: int | None, requester: Requester) -> Changed:
        """Append a mark, and apply it to the index."""
        record, pending, properties = found
        now_ms, identity = self._now_ms(), pending.identity
        entry = (record.queue_id, record.queue_offset) if record.topic == names.SCHEDULE_TOPIC else None
        stated = mark_alone(
            identity,
            properties,
            mark_of(kind, now_ms, identity, pending.record, pending.due_ms, next_due_ms, entry),
            now_ms,
            requester.host,
            requester.account,
            record.reconsume_times,
            reserve=Reserve.MARKS,
        )
        place, end = self._append(stated)
        if next_due_ms is None:
            self.end(pending)
            if entry is not None:
                self._queues[entry[0]].settled.settle(entry[1])
        else:
            if next_due_ms != pending.due_ms:
                self._forget_if_taken(pending)
                self._timeline.move(pending, next_due_ms)
            self._announce(next_due_ms)
        return self._changed(kind, pending, next_due_ms, place, end)

    def end(self, pending: Pending) -> None:
        """Remove a message from the index, because the log states its end."""
        self._forget_if_taken(pending)
        self._timeline.remove(pending)

    def _forget_if_taken(self, pending: Pending) -> None:
        if self._timeline.taken(pending.identity) is not None:
            self._forget(pending.identity)

    def _move_from_level(self, found: Found, kind: TimedMarkKind, due_ms: int, levels: DelayLevels) -> Changed:
        """Store a message with a delay level again, as a timed message with an identity of its own."""
        record, pending, properties = found
        place, end = self._append(moved_record(record, due_ms, original_delay_ms(record, properties, levels)))
        self.end(pending)
        self._queues[record.queue_id].settled.settle(record.queue_offset)
        # The dispatch of the record has added the message, unless it failed.
        partition = self._timeline.partitions.number(properties.get(names.REAL_TOPIC, ""))
        if self._timeline.find(due_ms, place, partition) is None:
            self._timeline.add(Pending(due_ms, place, place, end - place, pending.owner, partition))
            self._announce(due_ms)
        return self._changed(kind, pending, due_ms, place, end)

    def _append(self, record: NewRecord) -> tuple[int, int]:
        """Append a record; return its physical offset and that of its end. If it raises, nothing is in the log."""
        place, end, failure = append_statement(self._store, record, CHANGED_VERSION)
        if failure is not None:
            self._throttled.warning(
                "a pending message was changed, but a later step failed: %s", failure, error=failure
            )
        return place, end

    def _changed(self, kind: TimedMarkKind, pending: Pending, due_ms: int | None, place: int, end: int) -> Changed:
        self._counters.changed[kind] = self._counters.changed.get(kind, 0) + 1
        return Changed(kind, pending, due_ms, place, end)


def original_delay_ms(record: Record, properties: dict[str, str], levels: DelayLevels) -> int:
    """Return the delay in ms that the message of a record with these properties was sent with."""
    level = properties.get(names.DELAY, "")
    if record.topic == names.SCHEDULE_TOPIC and level.isascii() and level.isdigit():
        return levels.delay_ms(int(level))
    try:
        request = requested_time(properties, 0)
    except IllegalMessageError:
        request = None
    if request is None:
        return 0
    return request.time_ms if request.is_relative else max(request.time_ms - record.born_timestamp_ms, 0)


def moved_record(record: Record, due_ms: int, delay_ms: int) -> NewRecord:
    """Return the record by which a message with a delay level becomes a timed one.

    `delay_ms` is the delay that it was sent with. Its mark of form 1 settles the entry of the level, as that of a copy
    does.
    """
    properties = record.properties
    properties.pop(names.DELAY, None)
    properties.pop(names.DUE, None)
    place = record.physical_offset
    properties[names.MARK] = str(Mark(MarkKind.RESCHEDULED, record.queue_id, record.queue_offset, place))
    properties[names.TIMER_OUT_MS] = str(due_ms)
    state_delay(properties, delay_ms)
    return again(record, names.TIMER_TOPIC, 0, properties, first_due(due_ms))
