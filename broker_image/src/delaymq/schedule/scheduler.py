"""Draws what is due from many sources, so that none starves another."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol, TypeAlias

Entry: TypeAlias = tuple[int, int, int, int]
"""Due time in ms, queue of the schedule topic, offset in it, hand-overs that failed."""


class Lane(IntEnum):
    """Kinds of work that share the scheduler evenly when each has more than its share."""

    USERS = 0
    """Delayed messages in their queues."""
    RETRIES = 1
    """Hand-overs that failed before."""
    SYSTEM = 2
    """The broker's own deadlines."""


class DueSource(Protocol):
    """Something that knows what is due and when the next is."""

    @property
    def lane(self) -> Lane:
        """The lane in which the source waits for its turn."""

    def next_due_ms(self) -> int | None:
        """The earliest time at which `take` has something to give, or None."""

    def take(self, now_ms: int, count: int) -> list[Entry]:
        """Gives out at most `count` entries due at `now_ms`, in the order in which they are to be handed over.

        What is given out is the taker's: it settles it, or gives it back to a source.
        """


class Scheduler:
    """The sources, by turns."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, list[DueSource]] = {lane: [] for lane in Lane}
        self._turn = 0

    def add(self, source: DueSource) -> None:
        """Draws from `source` from now on."""
        self._lanes[source.lane].append(source)

    def remove(self, source: DueSource) -> None:
        """Draws from it no more."""
        self._lanes[source.lane].remove(source)

    def next_wakeup_ms(self) -> int | None:
        """The earliest time at which something is due, or None when nothing is pending."""
        earliest: int | None = None
        for sources in self._lanes.values():
            for source in sources:
                due_ms = source.next_due_ms()
                if due_ms is not None and (earliest is None or due_ms < earliest):
                    earliest = due_ms
        return earliest

    def due(self, now_ms: int, budget: int) -> list[list[Entry]]:
        """At most `budget` entries due at `now_ms`, a batch a source.

        Lanes share the budget evenly, and in a lane its sources; what one leaves, the others get. Whose share rounds
        up changes from call to call.
        """
        batches: list[list[Entry]] = []
        lanes = [ready for sources in self._lanes.values() if (ready := _ready(sources, now_ms))]
        if not lanes:
            return batches
        self._turn += 1
        while budget > 0 and lanes:
            lanes = _rotated(lanes, self._turn)
            remaining = []
            for position, sources in enumerate(lanes):
                share = -(-budget // (len(lanes) - position))
                budget -= self._draw(sources, now_ms, share, batches)
                if sources := _ready(sources, now_ms):
                    remaining.append(sources)
            lanes = remaining
        return batches

    def _draw(self, sources: list[DueSource], now_ms: int, share: int, batches: list[list[Entry]]) -> int:
        """Takes up to `share` entries from `sources`; how many it got."""
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
