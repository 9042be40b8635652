"""Counts of pending messages by due time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Buckets:
    """Counts by due time: overdue ones, then buckets of one width that end at its multiples, then all later ones."""

    def __init__(self, now_ms: int, width_ms: int, count: int, until_ms: int | None = None) -> None:
        self.now_ms = now_ms
        self.width_ms = width_ms
        self.rest = count + 1
        """Index of the entries that are due after the `count` buckets."""
        self.counts = [0] * (count + 3)
        """Overdue entries at index 0; entries due at `until_ms` or later after `rest`."""
        self.first_ms: list[int | None] = [None] * (count + 3)
        """Earliest due time in each bucket."""
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
