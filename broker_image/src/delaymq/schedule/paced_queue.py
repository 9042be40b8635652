"""Paced release of overdue entries: evenly over a period, in the order of their due times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace, merge

from delaymq.schedule.level_queue import LevelQueue, Run
from delaymq.schedule.scheduler import Entry, Lane


class PacedQueue:
    """A due source with a slot of time for each entry. What comes due later never waits for it.

    It takes the queues' runs as they are and draws from their heads: neither its beginning nor its end goes through
    the entries one by one, of which there may be millions.
    """

    lane = Lane.USERS

    def __init__(self, sources: Iterable[LevelQueue], up_to_ms: int, start_ms: int, until_ms: int) -> None:
        """Takes what is due at `up_to_ms` out of `sources`, to be given out from `start_ms` to `until_ms`."""
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
        """Entries that were not given out."""
        return (self._total - self._given if self._heap else 0) + len(self._returned)

    def next_due_ms(self) -> int | None:
        """The next entry's slot."""
        if self._returned:
            return self._start_ms
        if not self._heap:
            return None
        return self._start_ms + self._given * self._span_ms // max(self._total, 1)

    def take(self, now_ms: int, count: int) -> list[Entry]:
        """Gives out at most `count` entries whose slots have come."""
        taken, self._returned = self._returned[:count], self._returned[count:]
        while len(taken) < count and (slot_ms := self.next_due_ms()) is not None and slot_ms <= now_ms:
            due_ms, queue_id, offset, run = self._heap[0]
            self._advance(queue_id, run)
            if offset not in self._settled[queue_id]:
                taken.append((due_ms, queue_id, offset, 0))
                # Of what was settled meanwhile the last ones would have no slot.
                self._given = min(self._given + 1, self._total - 1) if self._heap else self._total
        return taken

    def give_back(self, entries: list[Entry]) -> None:
        """Takes back what was given out and not tried; it is next."""
        self._returned += entries

    def entries(self) -> Iterator[Entry]:
        """What is left, for looking, by due time; it may change between two steps."""
        yield from list(self._returned)
        yield from merge(*(self._entries_of(queue_id, run) for _, queue_id, _, run in list(self._heap)))

    def rest(self) -> tuple[list[tuple[int, Run]], list[Entry]]:
        """Everything that is left, by queue, for those who spread no longer. Ends this source."""
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
