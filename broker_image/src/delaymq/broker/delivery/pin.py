"""What retention must not delete: messages that are pending, or whose copies the disk does not have yet."""

from __future__ import annotations

from delaymq.broker.delivery.durable_value import DurableValue
from delaymq.broker.delivery.reader import DeliveryStore, ScheduleReader
from delaymq.message.names import SCHEDULE_TOPIC
from delaymq.schedule import LevelQueue


class DeliveryPin:
    """The oldest physical offset still needed, as of a moment up to which the log is flushed.

    A message counts as pending until its copy is on the disk: if its own record were deleted before, a loss of power
    would take both.
    """

    def __init__(self, store: DeliveryStore, reader: ScheduleReader, sources: dict[int, LevelQueue]) -> None:
        self._store = store
        self._reader = reader
        self._sources = sources
        self._as_on_disk = DurableValue(store, self._now, self._now())

    def oldest(self) -> int | None:
        """The pin; None when nothing holds anything."""
        oldest = self._as_on_disk.advance()
        # At the log's end nothing is held: that record is not written yet.
        return oldest if oldest < self._store.end_offset else None

    def _now(self) -> int:
        """Physical offset of the oldest pending message, or the log's end."""
        oldest = self._store.end_offset
        for queue_id, source in self._sources.items():
            if source.pending:
                first, _ = self._store.queue_bounds(SCHEDULE_TOPIC, queue_id)
                place = self._reader.place(queue_id, max(first, source.settled.low))
                if place is not None:
                    oldest = min(oldest, place.physical_offset)
        return oldest
