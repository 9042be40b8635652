"""Retention pin for messages that are pending, or whose copies are not yet flushed."""

from __future__ import annotations

from delaymq.broker.delivery.changes.pauses import Pauses
from delaymq.broker.delivery.durable_value import DurableValue
from delaymq.broker.delivery.reader import DeliveryStore
from delaymq.schedule.timeline import Timeline


class DeliveryPin:
    """Oldest physical offset that is still needed, as of a time up to which the log is flushed.

    A message counts as pending until its copy is flushed. If its record were deleted before, a power failure could lose
    both.
    """

    def __init__(self, store: DeliveryStore, timeline: Timeline, pauses: Pauses) -> None:
        self._store = store
        self._timeline = timeline
        self._pauses = pauses
        self._as_on_disk = DurableValue(store, self._now, self._now())

    def oldest(self) -> int | None:
        """Return the oldest pinned physical offset; None if nothing is pinned."""
        oldest = self._as_on_disk.advance()
        # At the end of the log nothing is pinned: that record is not written yet.
        return oldest if oldest < self._store.end_offset else None

    def _now(self) -> int:
        """Return the start of the oldest segment that holds a pending message or the mark of a pause, or the log's
        end."""
        offsets = self._timeline.holders.first(), self._pauses.oldest()
        return min((offset for offset in offsets if offset is not None), default=self._store.end_offset)
