"""Facts about the whole log that are required to classify some records, and the parts that were skipped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from delaymq_spark.store.segments import Skipped

MAX_SKIPPED: Final = 100
"""Maximum number of skipped parts that are listed; all are counted."""


@dataclass(slots=True)
class SkippedParts:
    """Skipped parts of a store; an incomplete write at the end of the log is listed but not counted."""

    count: int = 0
    bytes_count: int = 0
    segments: set[int] = field(default_factory=set)
    """Segments with skipped parts, which may contain live records."""
    named: list[Skipped] = field(default_factory=list)

    @property
    def first(self) -> tuple[Skipped, ...]:
        """The first skipped parts in log order; those at the log's end come last."""
        ordered = sorted(self.named, key=lambda each: (each.at_end, each.offset, each.file, each.position))
        return tuple(ordered[:MAX_SKIPPED])

    @property
    def complete(self) -> bool:
        """Whether nothing of the log was skipped."""
        return self.count == 0

    def note(self, each: Skipped) -> None:
        """Add a skipped part."""
        self.named.append(each)
        if len(self.named) > 2 * MAX_SKIPPED:
            # Bounds the memory for a store with damage everywhere.
            self.named = list(self.first)
        if not each.at_end:
            self.count += 1
            self.bytes_count += each.lost_bytes
            if each.offset >= 0:
                self.segments.add(each.offset - each.position)

    def add(self, other: SkippedParts) -> None:
        """Add the skipped parts of another object."""
        self.count += other.count
        self.bytes_count += other.bytes_count
        self.segments |= other.segments
        self.named += other.named
        self.named = list(self.first)


@dataclass(slots=True)
class Facts:
    """Facts about a part of the log or, merged, about all of it."""

    oldest_delayed: dict[int, int] = field(default_factory=dict)
    """Queue of the schedule topic → smallest queue offset of a record."""
    oldest_timed: int | None = None
    """Smallest identity of a timed message that has a record."""
    oldest_half: int | None = None
    """Smallest queue offset of a half message."""
    skipped: SkippedParts = field(default_factory=SkippedParts)

    def note_delayed(self, rows: pa.Table) -> None:
        """Record facts about delayed records."""
        if rows.num_rows:
            oldest = rows.group_by("queue_id", use_threads=False).aggregate([("queue_offset", "min")])
            self._older(zip(oldest["queue_id"].to_pylist(), oldest["queue_offset_min"].to_pylist(), strict=True))

    def note_timed(self, rows: pa.Table) -> None:
        """Record facts about records of the timer topic."""
        if rows.num_rows:
            self._older_timed(pc.min(rows["identity"]).as_py())

    def note_halves(self, rows: pa.Table) -> None:
        """Record facts about half messages."""
        if rows.num_rows:
            self._older_half(pc.min(rows["queue_offset"]).as_py())

    @staticmethod
    def merged(found: Iterable[Facts]) -> Facts:
        """Merge the facts of several parts."""
        whole = Facts()
        for each in found:
            whole._older(each.oldest_delayed.items())
            if each.oldest_timed is not None:
                whole._older_timed(each.oldest_timed)
            if each.oldest_half is not None:
                whole._older_half(each.oldest_half)
            whole.skipped.add(each.skipped)
        return whole

    def _older(self, oldest: Iterable[tuple[int, int]]) -> None:
        for queue_id, offset in oldest:
            self.oldest_delayed[queue_id] = min(offset, self.oldest_delayed.get(queue_id, offset))

    def _older_timed(self, identity: int) -> None:
        self.oldest_timed = identity if self.oldest_timed is None else min(identity, self.oldest_timed)

    def _older_half(self, offset: int) -> None:
        self.oldest_half = offset if self.oldest_half is None else min(offset, self.oldest_half)
