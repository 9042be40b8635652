"""Scheduler that takes due entries from many sources, so that none starves another."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol, TypeAlias

Entry: TypeAlias = tuple[int, int, int, int]
"""Due time in ms, queue of the schedule topic, offset in it, number of failed hand-overs."""


class Lane(IntEnum):
    """Kinds of work, which share the budget evenly if each needs more than its share."""

    USERS = 0
    """Delayed messages in their queues."""
    RETRIES = 1
    """Hand-overs that failed before."""
    SYSTEM = 2
    """The broker's own deadlines."""


class DueSource(Protocol):
    """Source of entries with due times."""

    @property
    def lane(self) -> Lane:
        """Lane to which the source belongs."""

    def next_due_ms(self) -> int | None:
        """Return the earliest time at which `take` returns an entry; None without entries."""

    def take(self, now_ms: int, count: int) -> list[Entry]:
        """Remove and return at most `count` entries due at `now_ms`, in the order in which they are to be delivered.

        The caller settles each of them, or puts it back into a source.
        """


class Scheduler:
    """Fair scheduler over all sources."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, list[DueSource]] = {lane: [] for lane in Lane}
        self._turn = 0

    def add(self, source: DueSource) -> None:
        """Add a source."""
        self._lanes[source.lane].append(source)

    def remove(self, source: DueSource) -> None:
        """Remove a source."""
        self._lanes[source.lane].remove(source)

    def next_wakeup_ms(self) -> int | None:
        """Return the earliest due time of all sources; None if nothing is pending."""
        earliest: int | None = None
        for sources in self._lanes.values():
            for source in sources:
                due_ms = source.next_due_ms()
                if due_ms is not None and (earliest is None or due_ms < earliest):
                    earliest = due_ms
        return earliest

    def due(self, now_ms: int, budget: int) -> list[list[Entry]]:
        """Return at most `budget` entries due at `now_ms`, one batch per source.

        The lanes share the budget evenly, and so do the sources of a lane. Unused shares go to the others. The lane or
        source whose share is rounded up changes with each call.
        """
        batches: list[list[Entry]] = []
        lanes = [ready for sources in self._lanes.values() if (ready := _ready(sources, now_ms))]
        if not lanes:
            return batches
        self._turn += 1
        if len(lanes) == len(lanes[0]) == 1 and budget > 0:  # the usual case
            entries = lanes[0][0].take(now_ms, budget)
            return [entries] if entries else batches
        while budget > 0 and lanes:
            lanes = _rotated(lanes, self._turn)
            remaining = []
            before = budget
            for position, sources in enumerate(lanes):
                share = -(-budget // (len(lanes) - position))
                budget -= self._draw(sources, now_ms, share, batches)
                if sources := _ready(sources, now_ms):
                    remaining.append(sources)
            if budget == before:
                break  # what seemed to be due has ended
            lanes = remaining
        return batches

    def _draw(self, sources: list[DueSource], now_ms: int, share: int, batches: list[list[Entry]]) -> int:
        """Take up to `share` entries from `sources`; return their number."""
        left = share
        ready = _rotated(sources, self._turn)
        while left > 0 and ready:
            more = []
            for position, source in enumerate(ready):
                wanted = -(-left // (len(ready) - position))
                if wanted <= 0:
                    break
                entries = source.take(now_ms, wanted)
                if entries:
                    batches.append(entries)
                    left -= len(entries)
                if len(entries) == wanted:
                    more.append(source)
            ready = more
        return share - left


def _ready(sources: list[DueSource], now_ms: int) -> list[DueSource]:
    ready = []
    for source in sources:
        due_ms = source.next_due_ms()
        if due_ms is not None and due_ms <= now_ms:
            ready.append(source)
    return ready


def _rotated(items: list, turn: int) -> list:  # type: ignore[type-arg]
    at = turn % len(items)
    return items[at:] + items[:at]
