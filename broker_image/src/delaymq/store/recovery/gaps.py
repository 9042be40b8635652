"""Numbers missing from queues, and records whose queue offset is inconsistent with the others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from delaymq.store.recovery.queue_runs import Key

MAX_BITS: Final = 8
"""Maximum number of damaged bits in queue id and topic together."""
MAX_LOOKUPS: Final = 1_000_000
"""Maximum number of gap lookups in other queues per recovery. Only a severely damaged log needs more; the remaining
records are appended.
"""


@dataclass(slots=True)
class Gap:
    """Numbers low…high missing from a queue between two physical offsets."""

    key: Key
    low: int
    high: int
    after: int
    before: float

    def has(self, number: int, at: int) -> bool:
        """Return whether the record at `at` with this queue offset would fill the gap or a part of it."""
        return self.low <= number < self.high and self.after < at < self.before


@dataclass(slots=True)
class Stray:
    """A record whose queue offset is not trusted."""

    key: Key
    number: int
    at: int


class Gaps:
    """Gaps of one survey. `end_of`: queue offset and physical offset of the last record of a queue, if any."""

    def __init__(self, end_of: Callable[[Key], tuple[int, int] | None]) -> None:
        self._end_of = end_of
        self._by_queue: dict[Key, list[Gap]] = {}
        self._looks = 0

    def add(self, gap: Gap) -> None:
        """Add a gap; it must follow the known gaps of its queue."""
        self._by_queue.setdefault(gap.key, []).append(gap)

    def lacks(self, key: Key, at: int) -> bool:
        """Return whether a queue lacks a queue offset around a physical offset."""
        gaps = self._by_queue.get(key, [])
        index = bisect_right(gaps, float(at), key=lambda gap: gap.before)
        return index < len(gaps) and gaps[index].after < at and gaps[index].low < gaps[index].high

    def fill(self, key: Key, strays: list[Stray]) -> list[tuple[Stray, int | None]]:
        """Assign to each stray of a queue, in log order, the next queue offset missing around it; None without one."""
        gaps = self._by_queue.get(key, [])
        index = 0
        filled: list[tuple[Stray, int | None]] = []
        for stray in strays:
            while index < len(gaps) and gaps[index].before <= stray.at:
                index += 1
            gap = gaps[index] if index < len(gaps) else None
            if gap is None or gap.after >= stray.at or gap.low >= gap.high:
                filled.append((stray, None))
                continue
            filled.append((stray, gap.low))
            gap.low += 1
        return filled

    def elsewhere(self, stray: Stray, named: Key | None) -> Gap | None:
        """Return the gap of another queue that fits the stray's offset and position, with the fewest damaged bits.

        `named`: the queue named in the record's properties; None: any.
        """
        found, fewest = None, MAX_BITS + 1
        for key, gaps in self._by_queue.items():
            bits = bits_between(key, stray.key)
            if not 0 < bits < fewest or self._looks > MAX_LOOKUPS or named not in (None, key):
                continue
            self._looks += len(gaps)
            for gap in gaps:
                if gap.has(stray.number, stray.at):
                    found, fewest = gap, bits
        if found is not None:
            return found
        # The newest record of a queue leaves no gap.
        topic, queue_id = stray.key
        for key in [(topic, queue_id ^ (1 << bit)) for bit in range(31)] if named is None else [named]:
            if not 0 < bits_between(key, stray.key) <= MAX_BITS:
                continue
            end = self._end_of(key) or (None if named is None else (0, -1))
            if end is not None and end[0] == stray.number and end[1] < stray.at:
                return Gap(key, end[0], end[0] + 1, end[1], inf)
        return None

    def take(self, gap: Gap, stray: Stray) -> None:
        """Mark the stray's queue offset as assigned in a gap returned by `elsewhere`."""
        gaps = self._by_queue.get(gap.key, [])
        for index, each in enumerate(gaps):
            if each is gap:
                gaps[index : index + 1] = [
                    Gap(gap.key, gap.low, stray.number, gap.after, stray.at),
                    Gap(gap.key, stray.number + 1, gap.high, stray.at, gap.before),
                ]
                return


def bits_between(one: Key, other: Key) -> int:
    """Return the number of bits by which queue id and topic differ; a large number if damage cannot be the cause."""
    if len(one[0]) != len(other[0]):
        return MAX_BITS + 1
    topics = int.from_bytes(one[0], "big") ^ int.from_bytes(other[0], "big")
    return topics.bit_count() + ((one[1] ^ other[1]) & 0xFFFFFFFF).bit_count()
