"""Number of records that hold pending messages, by segment of the log."""

from __future__ import annotations

from collections.abc import Iterable

from delaymq.schedule.timeline.entries import Pending


class Holders:
    """Counts by segment. `segment_bytes` is the size of a segment."""

    def __init__(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self._counts: dict[int, int] = {}

    def count(self, record: int, messages: int) -> None:
        """Add a number of records, possibly negative, in the segment of a physical offset."""
        segment = record // self.segment_bytes
        count = self._counts.get(segment, 0) + messages
        if count:
            self._counts[segment] = count
        else:
            del self._counts[segment]

    def remove(self, entries: Iterable[Pending]) -> None:
        """Remove the records of messages that are not pending any more."""
        counts, segment_bytes = self._counts, self.segment_bytes
        for entry in entries:
            segment = entry.record // segment_bytes
            left = counts[segment] - 1
            if left:
                counts[segment] = left
            else:
                del counts[segment]

    def first(self) -> int | None:
        """Return the start of the first segment with such a record; None without any."""
        return min(self._counts) * self.segment_bytes if self._counts else None

    def at(self, record: int) -> int:
        """Return the number of such records in the segment of a physical offset."""
        return self._counts.get(record // self.segment_bytes, 0)

    def below(self, offset: int) -> int:
        """Return the number of such records in segments that start before a physical offset."""
        segments = -(-offset // self.segment_bytes)
        return sum(count for segment, count in self._counts.items() if segment < segments)

    def state(self) -> dict[str, object]:
        """Return the state as JSON-compatible data."""
        return {"segmentBytes": self.segment_bytes, "counts": list(self._counts.items())}

    def restore(self, state: object) -> None:
        """Restore the counts. ValueError if they are invalid or for segments of another size."""
        if not isinstance(state, dict) or state.get("segmentBytes") != self.segment_bytes:
            raise ValueError(f"the records are not counted by segments of {self.segment_bytes} bytes")
        self._counts = {int(segment): int(count) for segment, count in state["counts"]}
