"""Interface of a segment, and the result of listing a store.

Any implementation of `SegmentFile`, which returns bytes at a position of a segment, can be the source of a store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from delaymq.store.reader import SegmentInfo

KNOWN_FORMAT_VERSION: Final = 4
"""Latest format version of a store that this reader supports (docs/formats/store.md)."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A part of a store that yields no rows."""

    file: str
    position: int
    """Position in the file, in bytes."""
    offset: int
    """Physical offset; -1 if there is none."""
    lost_bytes: int
    reason: str
    at_end: bool = False
    """Whether the part follows the log's last record, as an unfinished write or a crash leaves it."""

    def __str__(self) -> str:
        where = f"{self.file}, byte {self.position}"
        if self.offset >= 0:
            where += f" (offset {self.offset})"
        return f"{where}: {self.lost_bytes} bytes skipped: {self.reason}"


def of_newer_version(file: str, version: object) -> Skipped:
    """Return the report for a store that may contain data of an unknown form."""
    return Skipped(
        file, 0, -1, 0,
        f"the store has format version {version}, but this program supports {KNOWN_FORMAT_VERSION}: data that it does "
        "not recognise is omitted; use the version that wrote the store, or a later one",
    )  # fmt: skip


class SegmentFile(Protocol):
    """One segment of the log."""

    @property
    def base(self) -> int:
        """Physical offset of its first byte."""

    @property
    def name(self) -> str:
        """Path or address, as shown to users."""

    @property
    def file_bytes(self) -> int:
        """Size when the segment was listed."""

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer` with the bytes from `position`; return their number. OSError."""

    def next_data(self, position: int) -> int:
        """Return the position of the first byte from `position` that may be nonzero, or `file_bytes`."""

    def close(self) -> None:
        """Release the file or connection."""


def read_bytes(file: SegmentFile, position: int, count: int) -> bytearray:
    """Return `count` bytes from `position`, fewer at the end of the file. OSError."""
    buffer = bytearray(max(0, min(count, file.file_bytes - position)))
    with memoryview(buffer) as view:
        filled = file.read_into(position, view)
    del buffer[filled:]
    return buffer


@dataclass(frozen=True, slots=True)
class Listing:
    """Segments of a store, and problems found while listing them."""

    segments: tuple[SegmentInfo, ...]
    """In the order of their offsets."""
    skipped: tuple[Skipped, ...]
    """Files that are not segments."""
    gaps: tuple[Skipped, ...]
    """Gaps between segments: truncated and missing files."""
    end: int | None = None
    """Physical offset of the log's end if a broker states it; in a folder, it must be searched for."""

    @property
    def start(self) -> int:
        """Physical offset of the first byte of the log; 0 for an empty folder."""
        return self.segments[0].base if self.segments else self.end or 0
