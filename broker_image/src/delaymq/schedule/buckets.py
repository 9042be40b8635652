"""Counts of pending messages by due time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

HORIZONS_MS: Final = {"1m": 60_000, "10m": 600_000, "1h": 3_600_000, "1d": 86_400_000}
"""Times from now by which reports tell pending messages apart. Overdue ones belong to the first, later ones to MORE."""
MORE: Final = "more"


class DueCounts(ABC):
    """Counts by due time. Subclasses define the buckets, which are ordered by time."""

    def __init__(self, count: int) -> None:
        """Create `count` empty buckets."""
        self.counts = [0] * count
        self.first_ms: list[int | None] = [None] * count
        """Earliest due time in each bucket."""

    @abstractmethod
    def index_of(self, due_ms: int) -> int:
        """Return the index of the bucket that counts a due time."""

    @abstractmethod
    def end_of(self, index: int) -> int | None:
        """Return the end of a bucket in ms; None for one without an end."""

    def add(self, due_ms: int, count: int = 1) -> None:
        """Add `count` entries of one bucket, of which `due_ms` is the earliest due time."""
        index = self.index_of(due_ms)
        self.counts[index] += count
        first_ms = self.first_ms[index]
        if count > 0 and (first_ms is None or due_ms < first_ms):
            self.first_ms[index] = due_ms

    def add_sorted(self, dues: Sequence[int], start: int = 0, end: int | None = None, sign: int = 1) -> None:
        """Add the entries from `start` to before `end` of ascending due times, or subtract them with `sign` −1."""
        index, end = start, len(dues) if end is None else end
        while index < end:
            bound = self.end_of(self.index_of(dues[index]))
            following = end if bound is None else bisect_left(dues, bound, index, end)
            self.add(dues[index], sign * (following - index))
            index = following


class Buckets(DueCounts):
    """Counts by due time: overdue ones, then buckets of one width that end at its multiples, then all later ones."""

    def __init__(self, now_ms: int, width_ms: int, count: int, until_ms: int | None = None) -> None:
        """Overdue entries are counted at index 0; entries due at `until_ms` or later after `rest`."""
        super().__init__(count + 3)
        self.now_ms = now_ms
        self.width_ms = width_ms
        self.rest = count + 1
        """Index of the entries that are due after the `count` buckets."""
        self._until_ms = until_ms
        self._base = now_ms // width_ms

    def index_of(self, due_ms: int) -> int:
        """Return the index of the bucket that counts a due time."""
        if self._until_ms is not None and due_ms >= self._until_ms:
            return self.rest + 1
        if due_ms < self.now_ms:
            return 0
        return min(due_ms // self.width_ms - self._base + 1, self.rest)

    def start_of(self, index: int) -> int | None:
        """Return the start of a bucket in ms; None for that of the overdue entries."""
        return max((self._base + index - 1) * self.width_ms, self.now_ms) if index else None

    def end_of(self, index: int) -> int | None:
        """Return the end of a bucket in ms; None for one without an end."""
        if index > self.rest:
            return None
        end_ms = self.now_ms if index == 0 else (self._base + index) * self.width_ms
        if index == self.rest:
            return self._until_ms
        return end_ms if self._until_ms is None else min(end_ms, self._until_ms)


class BoundedCounts(DueCounts):
    """Counts by due time, in buckets that end at given times, and one after the last of them."""

    def __init__(self, bounds_ms: Sequence[int]) -> None:
        """`bounds_ms` are ascending times; a bucket does not include its end."""
        super().__init__(len(bounds_ms) + 1)
        self._bounds_ms = bounds_ms

    def index_of(self, due_ms: int) -> int:
        """Return the index of the bucket that counts a due time."""
        return bisect_right(self._bounds_ms, due_ms)

    def end_of(self, index: int) -> int | None:
        """Return the end of a bucket in ms; None for the last one."""
        return self._bounds_ms[index] if index < len(self._bounds_ms) else None


def by_horizon(now_ms: int) -> BoundedCounts:
    """Return empty counts by HORIZONS_MS."""
    return BoundedCounts([now_ms + ms for ms in HORIZONS_MS.values()])


def horizon_counts(counts: BoundedCounts) -> dict[str, int]:
    """Return the counts of `by_horizon` by name. Each message is counted once."""
    return dict(zip((*HORIZONS_MS, MORE), counts.counts, strict=True))
