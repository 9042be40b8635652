"""Paced release of overdue entries: evenly over a period, in the order of their due times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace, merge

from delaymq.schedule.level_queue import LevelQueue, Run
from delaymq.schedule.scheduler import Entry, Lane


class PacedQueue:
    """Due source with a time slot for each overdue entry. Messages that become due later are not affected.

    It takes over the runs of the queues and reads from their heads. Neither its start nor its end iterates over the
    entries, of which there may be millions.
    """

    lane = Lane.USERS

    def __init__(self, sources: Iterable[LevelQueue], up_to_ms: int, start_ms: int, until_ms: int) -> None:
        """Take the entries due at `up_to_ms` from `sources`, to be released evenly from `start_ms` to `until_ms`."""
        self._settled = {source.queue_id: source.settled for source in sources}
        runs = [(source, run) for source in sources for run in source.take_runs(up_to_ms)]
        self._total = sum(source.count(run, run.head, len(run.dues)) for source, run in runs)
        self._given = 0
        self._heap = [(run.dues[run.head], source.queue_id, run.offset_at(run.head), run) for source, run in runs]
        heapify(self._heap)
        self._start_ms = start_ms
        self._span_ms = max(until_ms - start_ms, 0)
        self._returned: list[Entry] = []

    @property
    def left(self) -> int:
        """Number of entries that have not been taken."""
        return (self._total - self._given if self._heap else 0) + len(self._returned)

    def next_due_ms(self) -> int | None:
        """Return the time slot of the next entry; None without one."""
        if self._returned:
            return self._start_ms
        if not self._heap:
            return None
        return self._start_ms + self._given * self._span_ms // max(self._total, 1)

    def take(self, now_ms: int, count: int) -> list[Entry]:
        """Remove and return at most `count` entries whose time slots have come."""
        taken, self._returned = self._returned[:count], self._returned[count:]
        while len(taken) < count and (slot_ms := self.next_due_ms()) is not None and slot_ms <= now_ms:
            due_ms, queue_id, offset, run = self._heap[0]
            self._advance(queue_id, run)
            if offset not in self._settled[queue_id]:
                taken.append((due_ms, queue_id, offset, 0))
                # All remaining entries may be settled already; the limit keeps the next slot within the period.
                self._given = min(self._given + 1, self._total - 1) if self._heap else self._total
        return taken

    def give_back(self, entries: list[Entry]) -> None:
        """Put back entries that were taken but not attempted; they are next."""
        self._returned += entries

    def entries(self) -> Iterator[Entry]:
        """Yield the remaining entries by due time, read-only; they may change between two steps."""
        yield from list(self._returned)
        yield from merge(*(self._entries_of(queue_id, run) for _, queue_id, _, run in list(self._heap)))

    def rest(self) -> tuple[list[tuple[int, Run]], list[Entry]]:
        """Remove and return the remaining runs and entries by queue, to end the pacing."""
        heap, self._heap = self._heap, []
        returned, self._returned = self._returned, []
        return [(queue_id, run) for _, queue_id, _, run in heap], returned

    def _advance(self, queue_id: int, run: Run) -> None:
        run.head += 1
        if run.head < len(run.dues):
            heapreplace(self._heap, (run.dues[run.head], queue_id, run.offset_at(run.head), run))
        else:
            heappop(self._heap)

    def _entries_of(self, queue_id: int, run: Run) -> Iterator[Entry]:
        index = run.head
        while index < len(run.dues):
            index = max(index, run.head) + 1
            if index <= len(run.dues) and (offset := run.offset_at(index - 1)) not in self._settled[queue_id]:
                yield run.dues[index - 1], queue_id, offset, 0
