"""Failed hand-overs that wait for their next attempt."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from delaymq.schedule.scheduler import Entry, Lane

MAX_OBJECTS = 10_000
"""Up to this number, failed entries are objects with individual waiting times; further ones are numbers in an array."""
_CROWD_NUMBERS = 4
_CROWD_FAILURES = 32
_TRIM_NUMBERS = 8_192 * _CROWD_NUMBERS
"""The front of the array is removed when it is at least this long and at least half of the array."""


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Waiting time after failed hand-overs."""

    first_ms: int = 100
    """Before the second attempt; doubled for each further one."""
    longest_ms: int = 60_000
    """Maximum, because the cause of a failure may disappear at any time."""

    def wait_ms(self, failures: int) -> int:
        """Return the waiting time in ms after the given number of failures (1 or more)."""
        return min(self.first_ms << min(failures - 1, 32), self.longest_ms)


class RetryQueue:
    """Due source with a separate lane: messages that cannot be delivered delay no others, whatever their number."""

    lane = Lane.RETRIES

    def __init__(self, backoff: Backoff, max_objects: int = MAX_OBJECTS) -> None:
        self._backoff = backoff
        self._max_objects = max_objects
        self._heap: list[tuple[int, Entry]] = []
        self._crowd = array("q")
        """Next attempt, due time, queue and offset of each further entry. All wait equally long, so attempts ascend."""
        self._crowd_head = 0

    def entries(self) -> Iterator[Entry]:
        """Iterate over the waiting entries, in any order."""
        yield from (entry for _, entry in self._heap)
        for at in range(self._crowd_head, len(self._crowd), _CROWD_NUMBERS):
            yield self._crowd_entry(at)

    def add_failed(self, entry: Entry, now_ms: int) -> int:
        """Add `entry`, whose hand-over failed at `now_ms`; return its waiting time in ms."""
        due_ms, queue_id, offset, failures = entry
        if len(self._heap) >= self._max_objects:
            wait_ms = self._backoff.longest_ms
            self._crowd.extend((now_ms + wait_ms, due_ms, queue_id, offset))
        else:
            wait_ms = self._backoff.wait_ms(failures + 1)
            heappush(self._heap, (now_ms + wait_ms, (due_ms, queue_id, offset, failures + 1)))
        return wait_ms

    def give_back(self, entry: Entry, now_ms: int) -> None:
        """Put back an entry that was taken but not attempted; it is due immediately."""
        heappush(self._heap, (now_ms, entry))

    def remove(self, identity: int) -> None:
        """Remove the entry with this identity in place of a queue offset, if it waits."""
        self._heap = [item for item in self._heap if item[1][2] != identity]
        heapify(self._heap)
        if identity in (offsets := self._crowd[self._crowd_head + 3 :: _CROWD_NUMBERS]):
            at = self._crowd_head + offsets.index(identity) * _CROWD_NUMBERS
            del self._crowd[at : at + _CROWD_NUMBERS]

    def next_due_ms(self) -> int | None:
        """Return the time of the next attempt; None without entries."""
        first_ms = self._heap[0][0] if self._heap else None
        crowd_ms = self._crowd_due_ms()
        if first_ms is None or crowd_ms is None:
            return crowd_ms if first_ms is None else first_ms
        return min(first_ms, crowd_ms)

    def take(self, now_ms: int, count: int) -> list[Entry]:
        """Remove and return at most `count` entries whose next attempt is due."""
        taken: list[Entry] = []
        while self._heap and len(taken) < count and self._heap[0][0] <= now_ms:
            taken.append(heappop(self._heap)[1])
        while len(taken) < count and (due_ms := self._crowd_due_ms()) is not None and due_ms <= now_ms:
            taken.append(self._crowd_entry(self._crowd_head))
            self._crowd_head += _CROWD_NUMBERS
        if self._crowd_head >= _TRIM_NUMBERS and self._crowd_head * 2 >= len(self._crowd):
            del self._crowd[: self._crowd_head]
            self._crowd_head = 0
        return taken

    def _crowd_due_ms(self) -> int | None:
        return self._crowd[self._crowd_head] if self._crowd_head < len(self._crowd) else None

    def _crowd_entry(self, at: int) -> Entry:
        _, due_ms, queue_id, offset = self._crowd[at : at + _CROWD_NUMBERS]
        return due_ms, queue_id, offset, _CROWD_FAILURES
