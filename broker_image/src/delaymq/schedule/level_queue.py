"""Pending entries of one queue of the schedule topic, by due time."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from operator import le

from delaymq.schedule.scheduler import Entry, Lane
from delaymq.schedule.settled import Settled

MAX_RUNS = 64
"""Maximum number of runs. Due times in a queue ascend unless the delay level table or the clock changed. If they
changed continuously, each entry would be a run. Above this number, the shorter half is merged into one run."""
_TRIM_ENTRIES = 8_192
"""The delivered front of a run is removed when it is at least this long and at least half of the run."""
_PIECE_ENTRIES = 8_192
"""Loading checks the order of due times in pieces of this size, and adds entries individually only in unordered
pieces."""


class Run:
    """Entries with non-decreasing due times; those with equal due times have ascending offsets."""

    __slots__ = ("dues", "first", "head", "offsets")

    def __init__(self, first: int, dues: array[int], offsets: array[int] | None = None) -> None:
        self.dues = dues
        self.first = first
        """Offset of the first entry; the others follow without gaps unless `offsets` is set."""
        self.offsets = offsets
        self.head = 0
        """Index of the first entry that has not been taken."""

    def __len__(self) -> int:
        return len(self.dues) - self.head

    def __lt__(self, other: Run) -> bool:
        return len(self) < len(other)

    def offset_at(self, index: int) -> int:
        return self.first + index if self.offsets is None else self.offsets[index]

    def part(self, start: int, stop: int) -> Run:
        """Return a separate run with these entries."""
        offsets = None if self.offsets is None else self.offsets[start:stop]
        return Run(self.first + start, self.dues[start:stop], offsets)

    def pairs(self) -> list[tuple[int, int]]:
        """Return (due time, offset) of the entries that have not been taken."""
        return [(self.dues[index], self.offset_at(index)) for index in range(self.head, len(self.dues))]

    def trim(self) -> None:
        head = self.head
        if head >= _TRIM_ENTRIES and head * 2 >= len(self.dues):
            del self.dues[:head]
            if self.offsets is None:
                self.first += head
            else:
                del self.offsets[:head]
            self.head = 0


class LevelQueue:
    """Due source for one queue: 8 bytes per pending entry while due times ascend, otherwise 16.

    Entries are split into runs of non-decreasing due times. A heap holds the head of each run, so that a later entry
    with an earlier due time comes first. Positions of messages in the log are not stored here: the queue file contains
    them.
    """

    lane = Lane.USERS

    def __init__(self, queue_id: int, settled: Settled) -> None:
        self.queue_id = queue_id
        self.settled = settled
        self.end_offset = settled.low
        """Offset of the queue's next entry."""
        self._heap: list[tuple[int, int, Run]] = []
        self._last: Run | None = None

    @property
    def waiting(self) -> int:
        """Number of entries that have not been taken, including settled ones."""
        return sum(len(run) for _, _, run in self._heap)

    @property
    def pending(self) -> int:
        """Number of entries that are not settled, taken or not."""
        return self.end_offset - self.settled.low - self.settled.above.count

    def runs(self) -> list[Run]:
        """Return the runs of entries that have not been taken, that with the earliest due time first; read-only."""
        return [run for _, _, run in sorted(self._heap)]

    def add(self, offset: int, due_ms: int) -> None:
        """Add the queue's next entry. Offsets ascend, and a missing offset is not an entry."""
        last = self._last
        if last is not None and offset == self.end_offset and due_ms >= last.dues[-1]:
            last.dues.append(due_ms)
        else:
            self._last = run = Run(offset, array("q", (due_ms,)))
            self._push(run)
        self.end_offset = offset + 1

    def extend(self, first_offset: int, dues: array[int]) -> None:
        """Add consecutive entries from `first_offset` on."""
        for start in range(0, len(dues), _PIECE_ENTRIES):
            piece = dues[start : start + _PIECE_ENTRIES]
            if not all(map(le, piece, islice(piece, 1, None))):
                for index, due_ms in enumerate(piece, start):
                    self.add(first_offset + index, due_ms)
                continue
            self.add(first_offset + start, piece[0])
            if len(piece) > 1 and self._last is not None:
                self._last.dues.extend(piece[1:])
                self.end_offset = first_offset + start + len(piece)

    def give_back(self, entries: list[Entry]) -> None:
        """Put back entries that were taken but not delivered; their due times may have been corrected."""
        if entries:
            self._push(_sorted_run([(due_ms, offset) for due_ms, _, offset, _ in entries]))

    def next_due_ms(self) -> int | None:
        """Return the due time of the next entry to be taken; None without one."""
        heap, settled = self._heap, self.settled
        while heap and heap[0][1] in settled:
            self._advance(heap[0][2], heap[0][2].head + 1)
        return heap[0][0] if heap else None

    def due_count(self, now_ms: int) -> int:
        """Return the number of entries that are due at `now_ms` and have not been taken."""
        return sum(self.count(run, run.head, bisect_right(run.dues, now_ms, run.head)) for _, _, run in self._heap)

    def count(self, run: Run, start: int, stop: int) -> int:
        """Return the number of unsettled entries in this part of a run, by ranges if its offsets ascend."""
        settled = self.settled
        if run.offsets is None:
            first, end = max(run.first + start, settled.low), run.first + stop
            return max(end - first - settled.above.count_between(first, end), 0) if first < end else 0
        offsets = run.offsets[start:stop]
        if not settled.above.count and min(offsets, default=settled.low) >= settled.low:
            return len(offsets)
        return sum(offset not in settled for offset in offsets)

    def take_runs(self, now_ms: int) -> list[Run]:
        """Remove and return all runs that are due at `now_ms`; a million entries cost one copy of their memory."""
        taken: list[Run] = []
        left: list[Run] = []
        for _, _, run in self._heap:
            stop = bisect_right(run.dues, now_ms, run.head)
            if stop < len(run.dues):
                left.append(run)
            elif run is self._last:
                self._last = None
            if run.head < stop:
                taken.append(run if stop == len(run.dues) else run.part(run.head, stop))
                if stop < len(run.dues):
                    run.head = stop
                    run.trim()
        self._heap = [(run.dues[run.head], run.offset_at(run.head), run) for run in left]
        heapify(self._heap)
        return taken

    def put_back(self, run: Run) -> None:
        """Put back the rest of a run that `take_runs` returned."""
        self._push(run)

    def take(self, now_ms: int, count: int) -> list[Entry]:
        """Remove and return at most `count` entries due at `now_ms`, earliest first."""
        taken: list[Entry] = []
        heap, queue_id, settled = self._heap, self.queue_id, self.settled
        while heap and len(taken) < count and heap[0][0] <= now_ms:
            run = heap[0][2]
            head = run.head
            stop = bisect_right(run.dues, now_ms, head, min(len(run.dues), head + count - len(taken)))
            if len(heap) > 1:
                # Up to the earliest due time of the other runs; entries with equal due times are ordered by the heap.
                other_due_ms = min(heap[1:3])[0]
                stop = max(head + 1, bisect_left(run.dues, other_due_ms, head, stop))
            for index in range(head, stop):
                offset = run.offset_at(index)
                if offset not in settled:
                    taken.append((run.dues[index], queue_id, offset, 0))
            self._advance(run, stop)
        return taken

    def _advance(self, run: Run, head: int) -> None:
        """Move the head of the run at the top of the heap."""
        run.head = head
        if head < len(run.dues):
            heapreplace(self._heap, (run.dues[head], run.offset_at(head), run))
            run.trim()
            return
        heappop(self._heap)
        if run is self._last:
            self._last = None

    def _push(self, run: Run) -> None:
        heappush(self._heap, (run.dues[run.head], run.offset_at(run.head), run))
        if len(self._heap) > MAX_RUNS:
            self._merge_short_runs()

    def _merge_short_runs(self) -> None:
        """Merge the shorter half of the runs into one sorted run; each entry is merged only a few times."""
        runs = sorted(run for _, _, run in self._heap)
        short, long = runs[: len(runs) // 2], runs[len(runs) // 2 :]
        if self._last in short:
            self._last = None
        long.append(_sorted_run([pair for run in short for pair in run.pairs()]))
        self._heap = [(run.dues[run.head], run.offset_at(run.head), run) for run in long]
        heapify(self._heap)


def _sorted_run(pairs: list[tuple[int, int]]) -> Run:
    pairs.sort()
    return Run(0, array("q", [due for due, _ in pairs]), array("q", [offset for _, offset in pairs]))
