"""What was overdue at one moment, given out evenly over a time and in the order in which it was due."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from delaymq.schedule.scheduler import Entry, Lane


class SpreadQueue:
    """A due source with a slot of time for each entry: 18 bytes an entry. What comes due later never waits for it."""

    lane = Lane.USERS

    def __init__(self, entries: Iterable[Entry], start_ms: int, until_ms: int) -> None:
        """`entries` in the order in which they are to be given out, from `start_ms` to `until_ms`."""
        self._dues = array("q")
        self._queue_ids = array("H")
        self._offsets = array("q")
        for due_ms, queue_id, offset, _ in entries:
            self._dues.append(due_ms)
            self._queue_ids.append(queue_id)
            self._offsets.append(offset)
        self._start_ms = start_ms
        self._span_ms = max(until_ms - start_ms, 0)
        self._head = 0
        self._returned: list[Entry] = []

    @property
    def left(self) -> int:
        """Entries that were not given out."""
        return len(self._dues) - self._head + len(self._returned)

    def next_due_ms(self) -> int | None:
        """The next entry's slot."""
        if self._returned:
            return self._start_ms
        if self._head == len(self._dues):
            return None
        return self._start_ms + self._head * self._span_ms // len(self._dues)

    def take(self, now_ms: int, count: int) -> list[Entry]:
        """Gives out at most `count` entries whose slots have come."""
        taken, self._returned = self._returned[:count], self._returned[count:]
        while len(taken) < count and (slot_ms := self.next_due_ms()) is not None and slot_ms <= now_ms:
            taken.append(self._at(self._head))
            self._head += 1
        return taken

    def give_back(self, entries: list[Entry]) -> None:
        """Takes back what was given out and not tried; it is next."""
        self._returned += entries

    def entries(self) -> Iterator[Entry]:
        """What is left, for looking; it may change between two steps."""
        yield from list(self._returned)
        index = self._head
        while index < len(self._dues):
            index = max(index, self._head) + 1
            if index <= len(self._dues):
                yield self._at(index - 1)

    def rest(self) -> Iterable[Entry]:
        """Everything that is left, for those who spread no longer. Ends this source."""
        returned, self._returned = self._returned, []
        yield from returned
        while self._head < len(self._dues):
            self._head += 1
            yield self._at(self._head - 1)

    def _at(self, index: int) -> Entry:
        return self._dues[index], self._queue_ids[index], self._offsets[index], 0
