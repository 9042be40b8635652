"""One file of a commit log, wherever it is, and what a listing of them says.

`SegmentFile` is the seam: whatever can give bytes at a position of a segment can be a store's source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from delaymq.store.reader import SegmentInfo


@dataclass(frozen=True, slots=True)
class Skipped:
    """A part of a store that gave no rows."""

    file: str
    position: int
    """Byte in that file."""
    offset: int
    """Physical offset; -1 where there is none."""
    lost_bytes: int
    reason: str
    at_end: bool = False
    """Whether it is what a write that was under way, or a crash, left behind the log's last record."""

    def __str__(self) -> str:
        where = f"{self.file}, byte {self.position}"
        if self.offset >= 0:
            where += f" (offset {self.offset})"
        return f"{where}: {self.lost_bytes} bytes skipped: {self.reason}"


class SegmentFile(Protocol):
    """One file of the log."""

    @property
    def base(self) -> int:
        """Physical offset of its first byte."""

    @property
    def name(self) -> str:
        """As it is told to people: path or address."""

    @property
    def file_bytes(self) -> int:
        """Its size when it was listed."""

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `position` on; how many bytes there were. OSError."""

    def next_data(self, position: int) -> int:
        """The first byte at or behind `position` that may be other than zero; `file_bytes` when there is none."""

    def close(self) -> None:
        """Let go of it."""


def read_bytes(file: SegmentFile, position: int, count: int) -> bytearray:
    """`count` bytes from `position` on, fewer at the file's end. OSError."""
    buffer = bytearray(max(0, min(count, file.file_bytes - position)))
    with memoryview(buffer) as view:
        filled = file.read_into(position, view)
    del buffer[filled:]
    return buffer


@dataclass(frozen=True, slots=True)
class Listing:
    """What a store's folder holds."""

    segments: tuple[SegmentInfo, ...]
    """In order."""
    skipped: tuple[Skipped, ...]
    """Files that are no segments."""
    gaps: tuple[Skipped, ...]
    """Between segments: files that were cut, and files that are not there."""
    end: int | None = None
    """Physical offset behind the last record, where a broker says it; a folder is to be searched for it."""

    @property
    def start(self) -> int:
        """Physical offset of the log's first byte; 0 for an empty folder."""
        return self.segments[0].base if self.segments else self.end or 0
