"""Queues that wait until their first entries are due."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from delaymq.schedule.timeline.cursors import EntryQueue

_SPARE_ITEMS: Final = 64


class Wakeups:
    """Due times of queues; `EntryQueue.wakeup_ms` is the one that applies."""

    def __init__(self) -> None:
        self._items: list[tuple[int, int, EntryQueue]] = []
        self._sequence = 0
        self._queues = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, queue: EntryQueue, due_ms: int) -> None:
        """Let a queue wait for an entry that is due then, unless it waits for an earlier one."""
        if queue.wakeup_ms is not None and queue.wakeup_ms <= due_ms:
            return
        self._queues += queue.wakeup_ms is None
        queue.wakeup_ms = due_ms
        self._sequence += 1
        heappush(self._items, (due_ms, self._sequence, queue))
        if len(self._items) > 2 * self._queues + _SPARE_ITEMS:
            # Items of queues that wait for an earlier time, or have more than one item.
            self._items = list({id(item[2]): item for item in self._items if item[2].wakeup_ms == item[0]}.values())
            heapify(self._items)

    def first_ms(self) -> int | None:
        """Return the earliest due time; None if no queue waits."""
        while self._items:
            due_ms, _, queue = self._items[0]
            if queue.wakeup_ms == due_ms:
                return due_ms
            heappop(self._items)
        return None

    def pop_due(self, now_ms: int) -> Iterator[EntryQueue]:
        """Remove and yield the queues with entries that are due."""
        while self._items and self._items[0][0] <= now_ms:
            due_ms, _, queue = heappop(self._items)
            if queue.wakeup_ms == due_ms:
                queue.wakeup_ms = None
                self._queues -= 1
                yield queue
