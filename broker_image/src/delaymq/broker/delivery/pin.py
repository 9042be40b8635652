"""Retention pin for messages that are pending, or whose copies are not yet flushed."""

from __future__ import annotations

from delaymq.broker.delivery.durable_value import DurableValue
from delaymq.broker.delivery.queue_state import QueueState
from delaymq.broker.delivery.reader import DeliveryStore, ScheduleReader
from delaymq.message.names import SCHEDULE_TOPIC
from delaymq.schedule.timeline import Timeline


class DeliveryPin:
    """Oldest physical offset that is still needed, as of a time up to which the log is flushed.

    A message counts as pending until its copy is flushed. If its record were deleted before, a power failure could lose
    both.
    """

    def __init__(
        self, store: DeliveryStore, reader: ScheduleReader, queues: dict[int, QueueState], timeline: Timeline
    ) -> None:
        self._store = store
        self._reader = reader
        self._queues = queues
        self._timeline = timeline
        self._as_on_disk = DurableValue(store, self._now, self._now())

    def oldest(self) -> int | None:
        """Return the oldest pinned physical offset; None if nothing is pinned."""
        oldest = self._as_on_disk.advance()
        # At the end of the log nothing is pinned: that record is not written yet.
        return oldest if oldest < self._store.end_offset else None

    def _now(self) -> int:
        """Return the physical offset of the oldest pending message, or the end of the log."""
        oldest = self._store.end_offset
        timed = self._timeline.holders.first()
        if timed is not None:
            oldest = min(oldest, timed)
        for queue_id, queue in self._queues.items():
            first, end = self._store.queue_bounds(SCHEDULE_TOPIC, queue_id)
            if queue.settled.low < end:
                place = self._reader.place(queue_id, max(first, queue.settled.low))
                if place is not None:
                    oldest = min(oldest, place.physical_offset)
        return oldest
