"""Merge of runs, in small steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from delaymq.schedule.timeline.entries import AFTER_ALL_OF_KEY, ENTRY, ENTRY_BYTES, KEY_BYTES, NO_RECORD
from delaymq.schedule.timeline.runs import Run, RunWriter

_PIECE_ENTRIES: Final = 256
"""Entries read from each run in one step."""
_RECORD_AT: Final = KEY_BYTES
_NO_RECORD: Final = ENTRY.pack(0, 0, NO_RECORD, 0, 0)[KEY_BYTES : KEY_BYTES + 8]


class Range(NamedTuple):
    """Entries of one partition in a run."""

    run: Run
    first: int
    end: int


class _Rows:
    """Packed entries of a range, read in pieces."""

    __slots__ = ("_at", "_end", "_run", "rows")

    def __init__(self, part: Range) -> None:
        self._run, self._at, self._end = part
        self.rows: list[bytes] = []

    def fill(self) -> bool:
        """Read a piece if there are no rows; return whether there are any then."""
        if not self.rows and self._at < self._end:
            count = min(_PIECE_ENTRIES, self._end - self._at)
            data = self._run.read(self._at, count)
            self.rows = [data[at : at + ENTRY_BYTES] for at in range(0, len(data), ENTRY_BYTES)]
            self._at += count
        return bool(self.rows)

    @property
    def has_more(self) -> bool:
        """Whether entries have not been read."""
        return self._at < self._end

    def take_up_to(self, bound: bytes | None) -> list[bytes]:
        """Remove and return the rows up to and including a key; all with None."""
        count = len(self.rows) if bound is None else bisect_right(self.rows, bound)
        taken, self.rows = self.rows[:count], self.rows[count:]
        return taken


class Merge:
    """One merge: call `step` until it returns 0, then use `run`."""

    def __init__(
        self, inputs: Sequence[Run], ranges: dict[int, list[Range]], writer: RunWriter, *, includes_oldest: bool
    ) -> None:
        """Merge the `ranges`, by partition, of `inputs`, which are ordered from the oldest to the newest run.

        With `includes_oldest`, there is no older run, so that ends of entries need not be kept.
        """
        self.inputs = inputs
        self.run: Run | None = None
        """The result; None before the end."""
        self.writer = writer
        """Writer of the result."""
        self._ranges = ranges
        self._is_plain = all(run.is_plain for run in inputs)
        self._includes_oldest = includes_oldest
        self._steps = self._merged()

    def step(self, entries: int) -> int:
        """Merge about this many entries and return their number; 0: the result is complete.

        OSError, TimelineDamagedError.
        """
        merged = 0
        while merged < entries and (count := next(self._steps, None)) is not None:
            merged += count
        if not merged:
            self.run = self.writer.finish(is_plain=self._is_plain or self._includes_oldest)
        return merged

    def _merged(self) -> Iterator[int]:
        for partition in sorted(self._ranges):
            parts = self._ranges[partition]
            if len(parts) == 1 and (self._is_plain or not self._includes_oldest):
                yield from self._copied(partition, parts[0])
            else:
                yield from self._merged_partition(partition, parts)

    def _copied(self, partition: int, part: Range) -> Iterator[int]:
        for first in range(part.first, part.end, _PIECE_ENTRIES):
            count = min(_PIECE_ENTRIES, part.end - first)
            self.writer.append(partition, part.run.read(first, count))
            yield count

    def _merged_partition(self, partition: int, parts: list[Range]) -> Iterator[int]:
        sources = [_Rows(part) for part in parts]
        while sources := [source for source in sources if source.fill()]:
            # Up to here, no source has entries that have not been read.
            bound = min((source.rows[-1] for source in sources if source.has_more), default=None)
            if bound is not None:
                bound = bound[:KEY_BYTES] + AFTER_ALL_OF_KEY
            pieces = [source.take_up_to(bound) for source in sources]
            rows = self._plain(pieces) if self._is_plain else self._newest(pieces)
            if rows:
                self.writer.append(partition, b"".join(rows))
            yield sum(map(len, pieces))

    @staticmethod
    def _plain(pieces: list[list[bytes]]) -> list[bytes]:
        rows = [row for piece in pieces for row in piece]
        rows.sort()
        return rows

    def _newest(self, pieces: list[list[bytes]]) -> list[bytes]:
        """Return the newest entry of each key, without ends that no older run needs."""
        newest = {row[:KEY_BYTES]: row for piece in pieces for row in piece}
        rows = sorted(newest.values())
        if self._includes_oldest:
            rows = [row for row in rows if row[_RECORD_AT : _RECORD_AT + 8] != _NO_RECORD]
        return rows
