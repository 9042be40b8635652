"""Read-only inspection of a queue's pending entries: counts by due time and number, and the next entries.

The queue may change between two steps of a generator. Entries delivered meanwhile may or may not be counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice

from delaymq.schedule.level_queue import LevelQueue, Run

STEP_ENTRIES = 2_048
"""Maximum entries per step that are examined individually: about 0.3 ms."""
MAX_EXAMINED = 16_384
"""Maximum entries of one run that are examined to find the earliest due times; later ones are not considered."""


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


def count_by_due(queue: LevelQueue, buckets: Buckets) -> Iterator[None]:
    """Count the pending entries of `queue`, one run per step, by bisection: a million entries take microseconds."""
    for run in queue.runs():
        if run.offsets is not None:
            for pairs in _steps_of(run):
                for due_ms, offset in pairs:
                    if offset not in queue.settled:
                        buckets.add(due_ms)
                yield
        else:
            buckets.add_sorted(run.dues, run.head)
            for first, end in queue.settled.above.pairs():
                start, stop = max(first - run.first, run.head), min(end - run.first, len(run.dues))
                if start < stop:
                    buckets.add_sorted(run.dues, start, stop, -1)
        yield


def entries_of(
    queue: LevelQueue, is_wanted: Callable[[int], bool], first: int | None = None
) -> Iterator[tuple[int, int] | None]:
    """Yield (due time, offset) of entries whose offset is wanted, and None where the caller may interrupt.

    With `first`, yield at most that many of each run. They include the `first` entries of the queue by due time.
    """
    for run in queue.runs():
        left = first
        for found in _wanted_pieces(queue, run, is_wanted):
            yield from found[:left]
            yield None
            if left is not None:
                left -= len(found)
                if left <= 0:
                    break


def _wanted_pieces(queue: LevelQueue, run: Run, is_wanted: Callable[[int], bool]) -> Iterator[list[tuple[int, int]]]:
    """Yield the wanted entries of a run by due time, from STEP_ENTRIES entries at a time."""
    if run.offsets is not None:
        for pairs in _steps_of(run):
            yield [pair for pair in pairs if is_wanted(pair[1]) and pair[1] not in queue.settled]
        return
    offset = run.first + run.head
    while offset < run.first + len(run.dues):
        # Heads advance in the meantime, and entries before them may be removed; offsets do not change.
        offset = max(offset, run.first + run.head)
        end = min(offset + STEP_ENTRIES, run.first + len(run.dues))
        first = run.first
        yield [
            (run.dues[each - first], each)
            for each in range(offset, end)
            if is_wanted(each) and each not in queue.settled
        ]
        offset = end


def _steps_of(run: Run) -> Iterator[list[tuple[int, int]]]:
    """Yield (due time, offset) of the entries that were not taken at the first step; the run may change between
    steps."""
    dues, offsets = run.dues[run.head :], run.offsets[run.head :] if run.offsets is not None else ()
    for start in range(0, len(dues), STEP_ENTRIES):
        stop = start + STEP_ENTRIES
        yield list(zip(dues[start:stop], offsets[start:stop], strict=True))


def first_by_number(
    queue: LevelQueue, number_at: Callable[[int], int], how_many: int, found: dict[int, int], unsure: set[int]
) -> Iterator[None]:
    """Find the earliest due time of each number that entries have, one run per step.

    There are `how_many` numbers. Numbers in `unsure` at the end may have an earlier due time than in `found`, or one
    that was not found; -1 stands for numbers that are not in `found`.
    """
    for run in queue.runs():
        seen: set[int] = set()
        end = min(len(run.dues), run.head + MAX_EXAMINED)
        for index in range(run.head, end):
            offset = run.offset_at(index)
            number = number_at(offset)
            if number in seen or offset in queue.settled:
                continue
            seen.add(number)
            due_ms = run.dues[index]
            if due_ms < found.get(number, due_ms + 1):
                found[number] = due_ms
            if len(seen) >= how_many:
                break
        if end < len(run.dues) and len(seen) < how_many:
            unsure |= {-1, *(number for number in found if number not in seen)}
        yield


def next_entries(queue: LevelQueue, count: int) -> list[tuple[int, int]]:
    """Return due time and offset of the next `count` entries; at most MAX_EXAMINED entries are examined."""
    heads = (_pairs_of(run) for run in queue.runs())
    examined = islice(merge(*heads), MAX_EXAMINED)
    return list(islice((pair for pair in examined if pair[1] not in queue.settled), count))


def _pairs_of(run: Run) -> Iterator[tuple[int, int]]:
    for index in range(run.head, len(run.dues)):
        yield run.dues[index], run.offset_at(index)
