"""The half messages that nobody has settled, in arrays: 24 bytes each, and nothing for the settled ones."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

# Settling moves the rest of a chunk: 8 KiB at most. Small ones are joined, or a few old halves would cost one each.
_CHUNK_HALVES: Final = 1_024
_JOINED_BELOW: Final = _CHUNK_HALVES // 4
_EXAMINED_SINGLY: Final = 16


class Chunk:
    """Neighbours in queue order; the arrays have one element a half message."""

    __slots__ = ("checks", "due_s", "groups", "offsets", "physical_offsets")

    def __init__(self) -> None:
        self.offsets = array("q")
        """In the half queue, ascending."""
        self.physical_offsets = array("q")
        """Ascending too: the queue is in the log's order."""
        self.due_s = array("I")
        """Unix time from which the producer may be asked; 0: not known."""
        self.groups = array("H")
        """Number of the producer group; 0: not known."""
        self.checks = array("H")
        """How often it was asked."""

    def remove(self, index: int) -> None:
        """Drops one half message."""
        del self.offsets[index], self.physical_offsets[index]
        del self.due_s[index], self.groups[index], self.checks[index]

    def extend(self, other: Chunk) -> None:
        """Takes the half messages of the chunk behind this one."""
        self.offsets.extend(other.offsets)
        self.physical_offsets.extend(other.physical_offsets)
        self.due_s.extend(other.due_s)
        self.groups.extend(other.groups)
        self.checks.extend(other.checks)


class PendingHalves:
    """Unsettled half messages in queue order; found by queue offset and by physical offset."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, offset: int, physical_offset: int, due_s: int = 0, group: int = 0, checks: int = 0) -> None:
        """A half message behind all others."""
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
        """Queue offset and physical offset of the oldest one."""
        if not self.chunks:
            return None
        chunk = self.chunks[0]
        return chunk.offsets[0], chunk.physical_offsets[0]

    def find(self, physical_offset: int) -> tuple[Chunk, int] | None:
        """Where the half message at a physical offset is kept."""
        place = self._place(physical_offset)
        return None if place is None else (self.chunks[place[0]], place[1])

    def settle(self, physical_offset: int) -> int | None:
        """Drops the half message at a physical offset; its queue offset, None when there is none."""
        place = self._place(physical_offset)
        if place is None:
            return None
        offset = self.chunks[place[0]].offsets[place[1]]
        self._remove(*place)
        return offset

    def settle_offset(self, offset: int) -> int | None:
        """Drops the half message at a queue offset; its physical offset, None when there is none."""
        number = bisect_right(self.chunks, offset, key=_first_offset) - 1
        index = -1 if number < 0 else _index_of(self.chunks[number].offsets, offset)
        if index < 0:
            return None
        physical_offset = self.chunks[number].physical_offsets[index]
        self._remove(number, index)
        return physical_offset

    def _place(self, physical_offset: int) -> tuple[int, int] | None:
        """Number of the chunk, and index in it, of the half message at a physical offset."""
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
        """Chunk number and index of the first half message at or behind a queue offset; (number of chunks, 0): none."""
        number = max(bisect_right(self.chunks, offset, key=_first_offset) - 1, 0)
        if number < len(self.chunks):
            index = bisect_left(self.chunks[number].offsets, offset)
            if index < len(self.chunks[number].offsets):
                return number, index
            number += 1
        return number, 0

    def offsets(self) -> Iterator[int]:
        """The queue offset of each, ascending."""
        for chunk in self.chunks:
            yield from chunk.offsets

    def runs(self, limit: int) -> tuple[list[list[int]], int | None]:
        """Neighbours that were asked equally often, as [first, first behind, checks], at most `limit` of them.

        The second value is the queue offset from which on nothing is told, None when all is.
        """
        collected: list[list[int]] = []
        for chunk in self.chunks:
            known_to = _collect_runs(chunk, 0, len(chunk.offsets), collected, limit)
            if known_to is not None:
                return collected, known_to
        return collected, None


def _collect_runs(chunk: Chunk, low: int, high: int, collected: list[list[int]], limit: int) -> int | None:
    """Adds the runs of a part of a chunk, by halves; from which queue offset on there is no room, None: all had it."""
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
    """Where a value stands in an array; -1 when it does not."""
    index = bisect_left(ascending, value)
    return index if index < len(ascending) and ascending[index] == value else -1
