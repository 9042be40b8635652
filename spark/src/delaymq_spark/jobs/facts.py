"""What has to be known of the whole log before some of its records can be judged, and what of it was not read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from delaymq_spark.store.segments import Skipped

MAX_SKIPPED: Final = 100
"""Of parts that are named; all are counted."""


@dataclass(slots=True)
class SkippedParts:
    """What of a store gave no rows; a write under way at its end is named, and does not count."""

    count: int = 0
    bytes_count: int = 0
    segments: set[int] = field(default_factory=set)
    """Of which something was skipped: what was may be live."""
    named: list[Skipped] = field(default_factory=list)

    @property
    def first(self) -> tuple[Skipped, ...]:
        """In order of the log, what is at its end last."""
        ordered = sorted(self.named, key=lambda each: (each.at_end, each.offset, each.file, each.position))
        return tuple(ordered[:MAX_SKIPPED])

    @property
    def complete(self) -> bool:
        """Whether nothing of the log was skipped."""
        return self.count == 0

    def note(self, each: Skipped) -> None:
        """One part more."""
        self.named.append(each)
        if len(self.named) > 2 * MAX_SKIPPED:
            # A store that goes wrong everywhere.
            self.named = list(self.first)
        if not each.at_end:
            self.count += 1
            self.bytes_count += each.lost_bytes
            if each.offset >= 0:
                self.segments.add(each.offset - each.position)

    def add(self, other: SkippedParts) -> None:
        """All that another one has."""
        self.count += other.count
        self.bytes_count += other.bytes_count
        self.segments |= other.segments
        self.named += other.named
        self.named = list(self.first)


@dataclass(slots=True)
class Facts:
    """Of a part of the log, then of all of it."""

    oldest_delayed: dict[int, int] = field(default_factory=dict)
    """Queue of the schedule topic → smallest queue offset of a record."""
    oldest_half: int | None = None
    """Smallest queue offset of a half message."""
    skipped: SkippedParts = field(default_factory=SkippedParts)

    def note_delayed(self, rows: pa.Table) -> None:
        """Delayed records."""
        if rows.num_rows:
            oldest = rows.group_by("queue_id", use_threads=False).aggregate([("queue_offset", "min")])
            self._older(zip(oldest["queue_id"].to_pylist(), oldest["queue_offset_min"].to_pylist(), strict=True))

    def note_halves(self, rows: pa.Table) -> None:
        """Half messages."""
        if rows.num_rows:
            self._older_half(pc.min(rows["queue_offset"]).as_py())

    @staticmethod
    def merged(found: Iterable[Facts]) -> Facts:
        """Those of several parts."""
        whole = Facts()
        for each in found:
            whole._older(each.oldest_delayed.items())
            if each.oldest_half is not None:
                whole._older_half(each.oldest_half)
            whole.skipped.add(each.skipped)
        return whole

    def _older(self, oldest: Iterable[tuple[int, int]]) -> None:
        for queue_id, offset in oldest:
            self.oldest_delayed[queue_id] = min(offset, self.oldest_delayed.get(queue_id, offset))

    def _older_half(self, offset: int) -> None:
        self.oldest_half = offset if self.oldest_half is None else min(offset, self.oldest_half)
