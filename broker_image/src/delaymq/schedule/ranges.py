"""Sets of queue offsets, kept as disjoint ranges in two arrays."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise


class OffsetRanges:
    """Set of offsets that mostly come in ascending runs: 16 bytes per range, regardless of its length."""

    __slots__ = ("_ends", "_starts", "count")

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")
        self.count = 0
        """Number of offsets in the set."""

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[int]:
        """Iterate over all offsets, ascending."""
        for start, end in self.pairs():
            yield from range(start, end)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Return the ranges as (first, end) with exclusive ends, ascending, with gaps between them."""
        return zip(self._starts, self._ends, strict=True)

    def add(self, offset: int) -> bool:
        """Add `offset`; return False if the set already contains it."""
        starts, ends = self._starts, self._ends
        if not ends or offset > ends[-1]:
            starts.append(offset)
            ends.append(offset + 1)
        elif offset == ends[-1]:
            ends[-1] = offset + 1
        else:
            # The range `at` starts at or before the offset, the following one after it.
            at = bisect_right(starts, offset) - 1
            if at >= 0 and offset < ends[at]:
                return False
            joins_left = at >= 0 and ends[at] == offset
            joins_right = starts[at + 1] == offset + 1
            if joins_left and joins_right:
                ends[at] = ends[at + 1]
                del starts[at + 1], ends[at + 1]
            elif joins_left:
                ends[at] = offset + 1
            elif joins_right:
                starts[at + 1] = offset
            else:
                starts.insert(at + 1, offset)
                ends.insert(at + 1, offset + 1)
        self.count += 1
        return True

    def count_below(self, offset: int) -> int:
        """Return the number of offsets below `offset`."""
        total = 0
        for start, end in self.pairs():
            if start >= offset:
                break
            total += min(end, offset) - start
        return total

    def count_between(self, start: int, end: int) -> int:
        """Return the number of offsets from `start` to before `end`, by bisection."""
        low, high = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if low >= high:
            return 0
        count = sum(self._ends[low:high]) - sum(self._starts[low:high])
        return count - max(start - self._starts[low], 0) - max(self._ends[high - 1] - end, 0)

    def drop_below(self, offset: int) -> None:
        """Remove all offsets below `offset`."""
        starts, ends = self._starts, self._ends
        whole = bisect_right(ends, offset)
        self.count -= sum(ends[:whole]) - sum(starts[:whole])
        del starts[:whole], ends[:whole]
        if starts and starts[0] < offset:
            self.count -= offset - starts[0]
            starts[0] = offset

    def drop_from(self, offset: int) -> None:
        """Remove `offset` and all offsets above it."""
        starts, ends = self._starts, self._ends
        while starts and ends[-1] > offset:
            if starts[-1] >= offset:
                self.count -= ends.pop() - starts.pop()
            else:
                self.count -= ends[-1] - offset
                ends[-1] = offset

    def first(self) -> tuple[int, int] | None:
        """Return the lowest range; None if the set is empty."""
        return (self._starts[0], self._ends[0]) if self._starts else None

    def state(self) -> list[int]:
        """Return the ranges for JSON: [first, end, first, end, …], with exclusive ends."""
        return [number for pair in self.pairs() for number in pair]

    @classmethod
    def from_state(cls, state: object) -> OffsetRanges:
        """Return the set that `state()` described. Raises ValueError if it is invalid."""
        if not isinstance(state, list) or len(state) % 2 or not all(type(number) is int for number in state):
            raise ValueError("ranges of offsets must be a list of whole numbers, two for each range")
        if any(here >= there for here, there in pairwise(state)) or (state and state[0] < 0):
            raise ValueError("ranges of offsets must be ascending, separate and not empty")
        ranges = cls()
        try:
            ranges._starts = array("q", state[0::2])
            ranges._ends = array("q", state[1::2])
        except OverflowError as error:
            raise ValueError("an offset must fit in 64 bits") from error
        ranges.count = sum(ranges._ends) - sum(ranges._starts)
        return ranges
