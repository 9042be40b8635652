"""Unsettled half messages in arrays: 24 bytes for each, and nothing for settled ones."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

_CHUNK_HALVES: Final = 1_024
"""Settling moves the rest of a chunk, at most 8 KiB."""
_JOINED_BELOW: Final = _CHUNK_HALVES // 4
"""Smaller chunks are merged; otherwise a few old half messages would occupy one each."""
_EXAMINED_SINGLY: Final = 16


class Chunk:
    """Half messages that are adjacent in queue order. Each array has one element per half message."""

    __slots__ = ("checks", "due_s", "groups", "offsets", "physical_offsets")

    def __init__(self) -> None:
        self.offsets = array("q")
        """Offsets in the half queue, ascending."""
        self.physical_offsets = array("q")
        """Also ascending, because the queue has the order of the log."""
        self.due_s = array("I")
        """Unix time in s from which the producer may be checked; 0: unknown."""
        self.groups = array("H")
        """Number of the producer group; 0: unknown."""
        self.checks = array("H")
        """Number of checks so far."""

    def remove(self, index: int) -> None:
        """Remove one half message."""
        del self.offsets[index], self.physical_offsets[index]
        del self.due_s[index], self.groups[index], self.checks[index]

    def extend(self, other: Chunk) -> None:
        """Append the half messages of the chunk after this one."""
        self.offsets.extend(other.offsets)
        self.physical_offsets.extend(other.physical_offsets)
        self.due_s.extend(other.due_s)
        self.groups.extend(other.groups)
        self.checks.extend(other.checks)


class PendingHalves:
    """Unsettled half messages in queue order, found by queue offset and by physical offset."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, offset: int, physical_offset: int, due_s: int = 0, group: int = 0, checks: int = 0) -> None:
        """Append a half message."""
        chunk = self.chunks[-1] if self.chunks else None
        if chunk is None or len(chunk.offsets) >= _CHUNK_HALVES:
            chunk = Chunk()
            self.chunks.append(chunk)
        chunk.offsets.append(offset)
        chunk.physical_offsets.append(physical_offset)
        chunk.due_s.append(due_s)
        chunk.groups.append(group)
        chunk.checks.append(checks)
        self._count += 1

    def first(self) -> tuple[int, int] | None:
        """Return queue offset and physical offset of the oldest half message."""
        if not self.chunks:
            return None
        chunk = self.chunks[0]
        return chunk.offsets[0], chunk.physical_offsets[0]

    def find(self, physical_offset: int) -> tuple[Chunk, int] | None:
        """Return chunk and index of the half message at a physical offset."""
        place = self._place(physical_offset)
        return None if place is None else (self.chunks[place[0]], place[1])

    def settle(self, physical_offset: int) -> int | None:
        """Remove the half message at a physical offset. Returns its queue offset, or None without one."""
        place = self._place(physical_offset)
        if place is None:
            return None
        offset = self.chunks[place[0]].offsets[place[1]]
        self._remove(*place)
        return offset

    def settle_offset(self, offset: int) -> int | None:
        """Remove the half message at a queue offset. Returns its physical offset, or None without one."""
        number = bisect_right(self.chunks, offset, key=_first_offset) - 1
        index = -1 if number < 0 else _index_of(self.chunks[number].offsets, offset)
        if index < 0:
            return None
        physical_offset = self.chunks[number].physical_offsets[index]
        self._remove(number, index)
        return physical_offset

    def _place(self, physical_offset: int) -> tuple[int, int] | None:
        """Return chunk number and index of the half message at a physical offset."""
        number = bisect_right(self.chunks, physical_offset, key=_first_physical_offset) - 1
        index = -1 if number < 0 else _index_of(self.chunks[number].physical_offsets, physical_offset)
        return None if index < 0 else (number, index)

    def _remove(self, number: int, index: int) -> None:
        chunk = self.chunks[number]
        chunk.remove(index)
        self._count -= 1
        left = len(chunk.offsets)
        if left == 0:
            del self.chunks[number]
        elif left < _JOINED_BELOW:
            if number and left + len(self.chunks[number - 1].offsets) <= _CHUNK_HALVES // 2:
                self.chunks[number - 1].extend(chunk)
                del self.chunks[number]
            elif number + 1 < len(self.chunks) and left + len(self.chunks[number + 1].offsets) <= _CHUNK_HALVES // 2:
                chunk.extend(self.chunks[number + 1])
                del self.chunks[number + 1]

    def at_or_behind(self, offset: int) -> tuple[int, int]:
        """Return chunk number and index of the first half message at or after a queue offset.

        Returns (number of chunks, 0) without one.
        """
        number = max(bisect_right(self.chunks, offset, key=_first_offset) - 1, 0)
        if number < len(self.chunks):
            index = bisect_left(self.chunks[number].offsets, offset)
            if index < len(self.chunks[number].offsets):
                return number, index
            number += 1
        return number, 0

    def offsets(self) -> Iterator[int]:
        """Yield all queue offsets, ascending."""
        for chunk in self.chunks:
            yield from chunk.offsets

    def runs(self, limit: int) -> tuple[list[list[int]], int | None]:
        """Return at most `limit` ranges of adjacent half messages with equal checks as [first, end, checks].

        The second value is the queue offset from which on the ranges are omitted, None if all are included.
        """
        collected: list[list[int]] = []
        for chunk in self.chunks:
            known_to = _collect_runs(chunk, 0, len(chunk.offsets), collected, limit)
            if known_to is not None:
                return collected, known_to
        return collected, None


def _collect_runs(chunk: Chunk, low: int, high: int, collected: list[list[int]], limit: int) -> int | None:
    """Add the ranges of a part of a chunk, by bisection. Returns the first queue offset beyond the limit, or None."""
    offsets, checks = chunk.offsets, chunk.checks
    if high - low > _EXAMINED_SINGLY:
        is_run = offsets[high - 1] - offsets[low] == high - 1 - low
        if not is_run or checks[low:high].tobytes() != checks[low : low + 1].tobytes() * (high - low):
            middle = (low + high) // 2
            known_to = _collect_runs(chunk, low, middle, collected, limit)
            return known_to if known_to is not None else _collect_runs(chunk, middle, high, collected, limit)
        steps = high - low
    else:
        steps = 1
    for index in range(low, high, steps):
        first = offsets[index]
        if collected and collected[-1][1] == first and collected[-1][2] == checks[index]:
            collected[-1][1] = first + steps
        elif len(collected) == limit:
            return first
        else:
            collected.append([first, first + steps, checks[index]])
    return None


def _first_physical_offset(chunk: Chunk) -> int:
    return chunk.physical_offsets[0]


def _first_offset(chunk: Chunk) -> int:
    return chunk.offsets[0]


def _index_of(ascending: array[int], value: int) -> int:
    """Return the index of a value in an array, -1 if it is missing."""
    index = bisect_left(ascending, value)
    return index if index < len(ascending) and ascending[index] == value else -1
