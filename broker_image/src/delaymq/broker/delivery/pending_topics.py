"""Topics of pending delayed messages, by queue of the schedule topic: a number per entry, and a count per topic.

The topics of messages stored since the start are known. Reading a million older records would delay the start, so their
entries are `UNKNOWN` until a background job reads the records (`learn`). Nothing of this is stored on disk, and only
administrative responses depend on it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence

# 4 bytes an entry that waits.
_TYPE = "I"
UNKNOWN = 0xFFFF_FFFF
"""The number of an entry whose record was not read yet."""
_TRIM_ENTRIES = 8_192
"""Settled entries are removed when there are at least this many and they are at least half of all entries."""


class QueueTopics:
    """The topics of one queue's entries from `first` on; numbers of topics mean something here only."""

    __slots__ = ("_counts", "_free", "_names", "_numbers", "entries", "first", "unknown")

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.entries = array(_TYPE)
        self.unknown = 0
        """Entries that wait and are not known."""
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._counts: list[int] = []
        self._free: list[int] = []

    def load(self, count: int, waiting: int) -> None:
        """Takes `count` entries that were there before the start, of which `waiting` are not settled."""
        self.entries = array(_TYPE, (UNKNOWN,)) * count
        self.unknown = waiting

    def add(self, offset: int, topic: str) -> None:
        """The queue's next entry, just stored."""
        behind = offset - self.first - len(self.entries)
        if behind:
            self._make_room(offset, behind)
        self.entries.append(self._count(topic))

    def _make_room(self, offset: int, behind: int) -> None:
        if not self.entries:
            self.first = offset
        elif behind > 0:
            self.entries.extend(array(_TYPE, (UNKNOWN,)) * behind)
            self.unknown += behind

    def _count(self, topic: str) -> int:
        number = self._numbers.get(topic)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._names[number] = topic
            else:
                number = len(self._names)
                self._names.append(topic)
                self._counts.append(0)
            self._numbers[topic] = number
        self._counts[number] += 1
        return number

    def settle(self, offset: int, low: int) -> None:
        """An entry that was not settled is; all below `low` are."""
        index = offset - self.first
        if not 0 <= index < len(self.entries):
            return
        number = self.entries[index]
        if number == UNKNOWN:
            self.unknown -= 1
        else:
            self._counts[number] -= 1
            if not self._counts[number]:
                del self._numbers[self._names[number]]
                self._free.append(number)
        settled = low - self.first
        if settled >= _TRIM_ENTRIES and settled * 2 >= len(self.entries):
            del self.entries[:settled]
            self.first = low

    def learn(self, offset: int, topic: str) -> None:
        """The topic of an entry that is not settled, read from its record."""
        index = offset - self.first
        if 0 <= index < len(self.entries) and self.entries[index] == UNKNOWN:
            self.entries[index] = self._count(topic)
            self.unknown -= 1

    def is_unknown(self, offset: int) -> bool:
        """Whether there is such an entry and nobody has learned its topic."""
        index = offset - self.first
        return 0 <= index < len(self.entries) and self.entries[index] == UNKNOWN

    def counts(self) -> dict[str, int]:
        """Waiting entries by topic, as far as they are known."""
        return {topic: self._counts[number] for topic, number in self._numbers.items()}

    def count(self, topic: str) -> int:
        """Waiting entries of one topic, as far as they are known."""
        number = self._numbers.get(topic)
        return 0 if number is None else self._counts[number]

    def number_of(self, topic: str) -> int | None:
        """The number that entries of a topic have now; None when none is known to wait."""
        return self._numbers.get(topic)

    def number_at(self, offset: int) -> int:
        """The number of an entry; UNKNOWN where there is none."""
        index = offset - self.first
        return self.entries[index] if 0 <= index < len(self.entries) else UNKNOWN

    def name_at(self, offset: int) -> str | None:
        """The topic of an entry that waits; None when it is not known."""
        number = self.number_at(offset)
        return None if number == UNKNOWN else self._names[number]


class PendingTopics:
    """All queues."""

    def __init__(self) -> None:
        self.queues: dict[int, QueueTopics] = {}

    def load(self, queue_id: int, first: int, count: int, waiting: int) -> None:
        """A queue as the start found it: `count` entries from `first` on, `waiting` of them not settled."""
        queue = self.queues[queue_id] = QueueTopics(first)
        queue.load(count, waiting)

    def queue(self, queue_id: int) -> QueueTopics:
        """One queue, made if need be."""
        queue = self.queues.get(queue_id)
        if queue is None:
            queue = self.queues[queue_id] = QueueTopics()
        return queue

    @property
    def complete(self) -> bool:
        """Whether the topics of all that waits are known."""
        return not any(queue.unknown for queue in self.queues.values())

    def count(self, topic: str) -> int:
        """What waits for a topic, as far as it is known."""
        return sum(queue.count(topic) for queue in self.queues.values())

    def unknown_ranges(
        self, waiting: Callable[[int, int], bool], entries_at_once: int
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Queue and offsets of entries that are to be learned, some at a time; ask on only after `learn`.

        `waiting(queue_id, offset)` says whether an entry is not settled. Queues may change between two steps.
        """
        for queue_id in sorted(self.queues):
            queue = self.queues[queue_id]
            offset = queue.first
            while queue.unknown > 0 and offset < queue.first + len(queue.entries):
                offset = max(offset, queue.first)
                end = min(offset + entries_at_once, queue.first + len(queue.entries))
                wanted = [each for each in range(offset, end) if queue.is_unknown(each) and waiting(queue_id, each)]
                offset = end
                yield queue_id, wanted
