"""Positions in runs, and the order in which the entries of many runs are taken."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, TypeAlias

from delaymq.schedule.timeline.entries import NO_RECORD, Pending, Row, unpacked
from delaymq.schedule.timeline.rates import Rate
from delaymq.schedule.timeline.runs import Run

_BUFFERED: Final = 64
"""Entries that a cursor unpacks together."""
_SOON_MS: Final = 100
"""A cursor keeps its unpacked entries if the next one is due within this time."""
Key: TypeAlias = tuple[int, int]
"""Due time in ms and identity."""
EndedKey: TypeAlias = tuple[int, int, int]
"""The same and partition: a message can have entries with one key in the partitions of its topic and of a paused
group."""
_NEVER: Final[Key] = (1 << 63, 0)
Times: TypeAlias = tuple[int, int]
"""Times in ms after the first one, up to the second one."""
NO_TIMES: Final[Times] = (0, 0)
_RELEASED: Final = Run(b"", (), is_plain=True)


def ended_key(entry: Pending) -> EndedKey:
    """Return key and partition of an entry."""
    return entry.due_ms, entry.identity, entry.partition


def _is_ended(row: Row, partition: int, ended: set[EndedKey]) -> bool:
    """Whether an entry that is passed has ended; then, its key is removed."""
    key = row[0], row[1], partition
    if key not in ended:
        return False
    ended.remove(key)
    return True


class Cursor:
    """Entries of a run and partition that have not been taken: those from `head` to before `end`."""

    __slots__ = ("_at", "_rows", "end", "head", "is_closed", "partition", "queue", "run")

    def __init__(self, run: Run, partition: int, head: int, end: int) -> None:
        self.run = run
        self.partition = partition
        self.head = head
        self.end = end
        self.queue: EntryQueue | None = None
        """Queue in which the cursor is open."""
        self.is_closed = False
        """Whether the entries are now in another run."""
        self._rows: list[Row] = []
        self._at = 0

    @property
    def left(self) -> int:
        """Number of entries."""
        return self.end - self.head

    def row(self) -> Row:
        """Return the first entry. There must be one. OSError, TimelineDamagedError."""
        if self._at >= len(self._rows):
            count = min(_BUFFERED, self.end - self.head)
            self._rows = list(unpacked(self.run.read(self.head, count)))
            self._at = 0
        return self._rows[self._at]

    def rows(self, bound: Key, count: int) -> list[Row]:
        """Return the first entry and those after it with keys below `bound`, at most `count` and a few dozen.

        There must be one. OSError, TimelineDamagedError.
        """
        self.row()
        first, rows = self._at, self._rows
        return rows[first : max(bisect_left(rows, bound, first, min(len(rows), first + count)), first + 1)]

    def advance(self, count: int = 1) -> None:
        """Move beyond the first entries."""
        self.run.left -= count
        self.head += count
        self._at += count

    def contains(self, key: Key) -> bool:
        """Whether one of the entries has this key. OSError, TimelineDamagedError."""
        identities = self.run.identities
        if identities is not None and key[1] not in identities:
            return False
        index = self.run.find(self.head, self.end, key)
        return index < self.end and self.run.key_at(index) == key

    def rest(self) -> None:
        """Release the unpacked entries."""
        self._rows, self._at = [], 0

    def split(self, due_ms: int) -> Cursor | None:
        """Split off the entries due at or before `due_ms` and return them as a cursor; None without such entries."""
        at = self.run.find(self.head, self.end, (due_ms + 1, 0))
        if at == self.head:
            return None
        part = Cursor(self.run, self.partition, self.head, at)
        self.head = at
        self.rest()
        return part


class EntryQueue:
    """Entries of memory and runs, taken in the order of their keys; of several with one key, only the newest counts."""

    __slots__ = (
        "_closed",
        "_cursors",
        "_fresh",
        "_new",
        "_new_ms",
        "_sequence",
        "is_parked",
        "is_ready",
        "rates",
        "shift_ms",
        "unlimited",
    )

    def __init__(self) -> None:
        self._fresh: list[tuple[int, int, int, Pending]] = []
        """A heap of entries in memory."""
        self._new: list[Pending] = []
        """Entries in memory that are added to the heap when one of them is due: most become part of a run before."""
        self._new_ms = _NEVER[0]
        """Earliest due time of these."""
        self._cursors: list[tuple[int, int, int, int, Cursor]] = []
        self._closed = 0
        self._sequence = 0
        self.is_ready = False
        """Whether the timeline takes from this queue because an entry is due."""
        self.rates: tuple[Rate, ...] = ()
        """Limits of the rate at which entries are taken, all of which apply."""
        self.unlimited = NO_TIMES
        """Due times of entries to which they do not apply."""
        self.is_parked = False
        """Whether nothing is taken from this queue, because its topic or group is paused."""
        self.shift_ms = 0
        """Time in ms by which each entry is taken later than it is due."""

    def add(self, entry: Pending) -> bool:
        """Add an entry that is in memory; return whether it may be due before all others."""
        self._new.append(entry)
        if entry[0] >= self._new_ms:
            return False
        self._new_ms = entry[0]
        return True

    def _order_new(self) -> None:
        """Add the new entries to the heap."""
        fresh, new = self._fresh, self._new
        items = [(entry[0], entry[1], -number, entry) for number, entry in enumerate(new, self._sequence + 1)]
        self._sequence += len(items)
        if len(items) < len(fresh):
            for item in items:
                heappush(fresh, item)
        else:
            fresh += items
            heapify(fresh)
        self._new, self._new_ms = [], _NEVER[0]

    def open(self, cursor: Cursor, key: Key) -> None:
        """Add the entries of a cursor, the first of which has this key."""
        cursor.queue = self
        # The sequence distinguishes the cursor from a closed one with the same key.
        self._sequence += 1
        heappush(self._cursors, (*key, -cursor.run.age, self._sequence, cursor))

    def close(self, cursor: Cursor) -> None:
        """Remove a cursor of this queue."""
        cursor.is_closed = True
        cursor.run = _RELEASED  # the file of the run is not needed any more
        cursor.rest()
        self._closed += 1
        if self._closed * 2 > len(self._cursors):
            self._cursors = [item for item in self._cursors if not item[4].is_closed]
            heapify(self._cursors)
            self._closed = 0

    def forget_fresh(self) -> None:
        """Remove the entries in memory, which a run now contains."""
        self._fresh.clear()
        self._new, self._new_ms = [], _NEVER[0]

    def drop_stale(self, memory: dict[int, Pending]) -> None:
        """Release the entries that are no longer in memory."""
        self._order_new()
        self._fresh = [item for item in self._fresh if memory.get(item[1]) is item[3]]
        heapify(self._fresh)

    def next_ms(self) -> int | None:
        """Return the earliest time at which an entry may be taken; None if the queue is empty."""
        due_ms = self.next_due_ms()
        return None if due_ms is None else due_ms + self.shift_ms

    def next_due_ms(self) -> int | None:
        """Return the earliest due time; None if the queue is empty. Entries that have ended may count."""
        self._drop_closed()
        fresh: int | None = self._new_ms
        if self._fresh and self._fresh[0][0] < self._new_ms:
            fresh = self._fresh[0][0]
        elif not self._new:
            fresh = None
        if not self._cursors:
            return fresh
        due_ms = self._cursors[0][0]
        return due_ms if fresh is None or due_ms < fresh else fresh

    def take(
        self, now_ms: int, count: int, memory: dict[int, Pending], ended: set[EndedKey], taken: list[Pending]
    ) -> None:
        """Move at most `count` entries that may be taken at `now_ms` to `taken`. OSError, TimelineDamagedError.

        `memory` has the entries that are in memory, by identity, from which taken ones are removed. `ended` has the
        keys of entries in runs that have ended; those that are passed are removed. After an error, `taken` contains
        what was taken before, and a later call continues there.
        """
        count += len(taken)
        now_ms -= self.shift_ms
        if self._new_ms <= now_ms:
            self._order_new()
        fresh = self._fresh
        while len(taken) < count:
            self._drop_closed()
            first = self._cursors[0][:2] if self._cursors else _NEVER
            if fresh and fresh[0][:2] <= first:
                entry = fresh[0][3]
                if entry.due_ms > now_ms:
                    break
                if memory.get(entry.identity) is entry:
                    self._skip(entry[:2])
                    del memory[entry.identity]
                    taken.append(entry)
                heappop(fresh)
            elif first[0] <= now_ms:
                limit = min(self._cursors[1:3])[:2] if len(self._cursors) > 1 else _NEVER
                if fresh:
                    limit = min(limit, fresh[0][:2])
                self._take_run(now_ms, count, limit, ended, taken)
            else:
                break

    def _take_run(self, now_ms: int, count: int, limit: Key, ended: set[EndedKey], taken: list[Pending]) -> None:
        """Take from the first cursor until there are `count` entries: one, and those with keys below `limit`."""
        due_ms, identity, rank, sequence, cursor = self._cursors[0]
        partition, new_pending = cursor.partition, tuple.__new__  # faster than Pending(*row, partition)
        key: Key = cursor.row()[:2]
        if key != (due_ms, identity):  # an error occurred after the cursor had moved
            heapreplace(self._cursors, (*key, rank, sequence, cursor))
            return
        if key == limit:
            heappop(self._cursors)
            try:
                self._skip(key)
            finally:
                heappush(self._cursors, (*key, rank, sequence, cursor))
        bound = min(limit, (now_ms + 1, 0))
        while True:
            rows = cursor.rows(bound, count - len(taken))
            taken += [
                new_pending(Pending, (*row, partition))
                for row in rows
                if not (ended and _is_ended(row, partition, ended)) and row[2] != NO_RECORD
            ]
            cursor.advance(len(rows))
            if not cursor.left:
                heappop(self._cursors)
                return
            key = cursor.row()[:2]
            if key >= bound or len(taken) >= count:
                heapreplace(self._cursors, (*key, rank, sequence, cursor))
                if key[0] > now_ms + _SOON_MS:
                    cursor.rest()
                return

    def _skip(self, key: Key) -> None:
        """Move beyond the entries of runs with a key of which a newer entry is being taken."""
        self._drop_closed()
        while self._cursors and self._cursors[0][:2] == key:
            _, _, rank, sequence, cursor = self._cursors[0]
            if cursor.row()[:2] == key:
                cursor.advance()
            if cursor.left:
                heapreplace(self._cursors, (*cursor.row()[:2], rank, sequence, cursor))
            else:
                heappop(self._cursors)
            self._drop_closed()

    def empty(self, memory: dict[int, Pending]) -> tuple[list[Cursor], list[Pending]]:
        """Remove and return all cursors and all entries in memory, in any order."""
        self._order_new()
        cursors = [item[4] for item in self._cursors if not item[4].is_closed]
        entries = [item[3] for item in self._fresh if memory.get(item[1]) is item[3]]
        self._cursors, self._closed = [], 0
        self._fresh.clear()
        return cursors, entries

    def count(self, memory: dict[int, Pending]) -> int:
        """Return the number of entries, including those that have ended in runs."""
        self._order_new()
        fresh = sum(memory.get(item[1]) is item[3] for item in self._fresh)
        return fresh + sum(item[4].left for item in self._cursors if not item[4].is_closed)

    def count_due(self, now_ms: int, memory: dict[int, Pending]) -> int:
        """Return the number of entries that may be taken at `now_ms`, including those that have ended in runs.

        OSError, TimelineDamagedError.
        """
        now_ms -= self.shift_ms
        self._order_new()
        fresh = sum(item[0] <= now_ms and memory.get(item[1]) is item[3] for item in self._fresh)
        cursors = (item[4] for item in self._cursors if not item[4].is_closed)
        return fresh + sum(each.run.find(each.head, each.end, (now_ms + 1, 0)) - each.head for each in cursors)

    def _drop_closed(self) -> None:
        while self._cursors and self._cursors[0][4].is_closed:
            heappop(self._cursors)
            self._closed -= 1
