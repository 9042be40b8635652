"""Queues by the due times of their first entries."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from delaymq.schedule.timeline.cursors import EntryQueue

_SPARE_ITEMS: Final = 64


class Wakeups:
    """Due times of queues, and the earliest of them."""

    def __init__(self) -> None:
        self._dues: dict[EntryQueue, int] = {}
        self._items: list[tuple[int, int, EntryQueue]] = []
        """A heap. Items whose due times differ from `_dues` do not count."""
        self._sequence = 0

    def __contains__(self, queue: EntryQueue) -> bool:
        return queue in self._dues

    def add(self, queue: EntryQueue, due_ms: int) -> None:
        """Add a queue, or let it have this due time if that is earlier."""
        known = self._dues.get(queue)
        if known is None or due_ms < known:
            self.replace(queue, due_ms)

    def replace(self, queue: EntryQueue, due_ms: int) -> None:
        """Add a queue, or let it have this due time."""
        self._dues[queue] = due_ms
        self._sequence += 1
        heappush(self._items, (due_ms, self._sequence, queue))
        if len(self._items) > 2 * len(self._dues) + _SPARE_ITEMS:
            self._items = [(due_ms, number, queue) for number, (queue, due_ms) in enumerate(self._dues.items())]
            self._sequence = len(self._items)
            heapify(self._items)

    def remove(self, queue: EntryQueue) -> None:
        """Remove a queue if it is there."""
        self._dues.pop(queue, None)

    def first_ms(self) -> int | None:
        """Return the earliest due time; None without queues."""
        while self._items:
            due_ms, _, queue = self._items[0]
            if self._dues.get(queue) == due_ms:
                return due_ms
            heappop(self._items)
        return None

    def pop_due(self, now_ms: int) -> Iterator[EntryQueue]:
        """Remove and yield the queues with entries that are due."""
        while (due_ms := self.first_ms()) is not None and due_ms <= now_ms:
            queue = heappop(self._items)[2]
            del self._dues[queue]
            yield queue
