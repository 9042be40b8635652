"""Topics of pending delayed messages, by queue of the schedule topic: a number per entry, and a count per topic.

The topics of messages stored since the start are known. Reading a million older records would delay the start, so their
entries are `UNKNOWN` until a background job reads the records (`learn`). Nothing of this is stored on disk, and only
administrative responses depend on it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence

_TYPE = "I"
"""Type code of an array with 4 bytes per pending entry."""
UNKNOWN = 0xFFFF_FFFF
"""Number of an entry whose record has not been read yet."""
_TRIM_ENTRIES = 8_192
"""Settled entries are removed when there are at least this many and they are at least half of all entries."""


class QueueTopics:
    """Topics of the entries of one queue from `first` on, as numbers that are valid only within this object."""

    __slots__ = ("_counts", "_free", "_names", "_numbers", "entries", "first", "unknown")

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.entries = array(_TYPE)
        self.unknown = 0
        """Number of pending entries with an unknown topic."""
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._counts: list[int] = []
        self._free: list[int] = []

    def load(self, count: int, waiting: int) -> None:
        """Add `count` entries from before the start, of which `waiting` are not settled."""
        self.entries = array(_TYPE, (UNKNOWN,)) * count
        self.unknown = waiting

    def add(self, offset: int, topic: str) -> None:
        """Add the queue's next entry."""
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
        """Remove a newly settled entry. All entries below `low` are settled."""
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
        """Set the topic of an unsettled entry from its record."""
        index = offset - self.first
        if 0 <= index < len(self.entries) and self.entries[index] == UNKNOWN:
            self.entries[index] = self._count(topic)
            self.unknown -= 1

    def is_unknown(self, offset: int) -> bool:
        """Whether the entry exists and its topic is unknown."""
        index = offset - self.first
        return 0 <= index < len(self.entries) and self.entries[index] == UNKNOWN

    def counts(self) -> dict[str, int]:
        """Return the number of pending entries by topic; entries with an unknown topic are not counted."""
        return {topic: self._counts[number] for topic, number in self._numbers.items()}

    def count(self, topic: str) -> int:
        """Return the number of pending entries of one topic; entries with an unknown topic are not counted."""
        number = self._numbers.get(topic)
        return 0 if number is None else self._counts[number]

    def number_of(self, topic: str) -> int | None:
        """Return the current number of a topic; None without known pending entries."""
        return self._numbers.get(topic)

    def number_at(self, offset: int) -> int:
        """Return the number of an entry's topic; UNKNOWN if there is no such entry."""
        index = offset - self.first
        return self.entries[index] if 0 <= index < len(self.entries) else UNKNOWN

    def name_at(self, offset: int) -> str | None:
        """Return the topic of a pending entry; None if it is unknown."""
        number = self.number_at(offset)
        return None if number == UNKNOWN else self._names[number]


class PendingTopics:
    """Topics of pending messages in all queues."""

    def __init__(self) -> None:
        self.queues: dict[int, QueueTopics] = {}

    def load(self, queue_id: int, first: int, count: int, waiting: int) -> None:
        """Add a queue with `count` entries from `first` on, of which `waiting` are not settled."""
        queue = self.queues[queue_id] = QueueTopics(first)
        queue.load(count, waiting)

    def queue(self, queue_id: int) -> QueueTopics:
        """Return a queue, created if necessary."""
        queue = self.queues.get(queue_id)
        if queue is None:
            queue = self.queues[queue_id] = QueueTopics()
        return queue

    @property
    def complete(self) -> bool:
        """Whether the topics of all pending messages are known."""
        return not any(queue.unknown for queue in self.queues.values())

    def count(self, topic: str) -> int:
        """Return the number of pending messages of a topic; those with an unknown topic are not counted."""
        return sum(queue.count(topic) for queue in self.queues.values())

    def unknown_ranges(
        self, waiting: Callable[[int, int], bool], entries_at_once: int
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield queue and offsets of some entries with unknown topics; call `learn` for them before the next step.

        `waiting(queue_id, offset)` returns whether an entry is not settled. Queues may change between two steps.
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
