"""Read-only reader of any RocketMQ 4.9 store, even one that a broker has open; it takes no lock.

Tools and Spark jobs use it. It imports only the message package and the standard library.
Layout: docs/formats/store.md.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from delaymq.message.errors import RecordError
from delaymq.message.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    FIXED_BYTES,
    MAGIC_OVERLAP_BYTES,
    MESSAGE_MAGIC,
    PHYSICAL_OFFSET_AT,
    PHYSICAL_OFFSET_BYTES,
    SIZE_AND_MAGIC,
    SIZE_BYTES,
    Record,
    decode_record,
    possible_starts,
)

QUEUE_ENTRY: Final = struct.Struct(">qiq")
INDEX_HEADER: Final = struct.Struct(">qqqqii")
INDEX_ENTRY: Final = struct.Struct(">iqii")
_PIECE_BYTES: Final = 1 << 20
_PAGE_BYTES: Final = 4096
_COMPARED_TIMES: Final = 3
"""Records after damage were not stored before the earliest of this number of records before it, as in recovery."""
_ZERO_RUN: Final = re.compile(rb"\0+")


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One file of the commit log."""

    base: int
    path: str
    file_bytes: int

    @property
    def end(self) -> int:
        """Physical offset after its last byte."""
        return self.base + self.file_bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """Part of the log that holds no valid record and is followed by valid ones."""

    path: str
    position: int
    """Byte in that file."""
    offset: int
    """Physical offset."""
    lost_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class LogEnd:
    """End of the log and its cause."""

    offset: int
    segment: SegmentInfo | None
    torn_bytes: int
    """Number of bytes from the end up to the last byte of the file that is not zero."""
    reason: str


class QueueEntry(NamedTuple):
    """One entry of a consume queue."""

    number: int
    physical_offset: int
    size: int
    tags_code: int


class StoreReader:
    """Reads one store. FileNotFoundError: the folder holds no commit log."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path).rstrip("/")
        if not os.path.isdir(f"{self.path}/commitlog"):
            raise FileNotFoundError(f"{self.path} is not a store: it has no commitlog folder")

    # -- the log --------------------------------------------------------------------------------------------------

    def segments(self) -> list[SegmentInfo]:
        """Return the log's files in order."""
        found = []
        for name in sorted(os.listdir(f"{self.path}/commitlog")):
            if len(name) == 20 and name.isascii() and name.isdigit():
                path = f"{self.path}/commitlog/{name}"
                found.append(SegmentInfo(int(name), path, os.stat(path).st_size))
        return found

    def records(self, start: int | None = None, *, check_crc: bool = True) -> Iterator[Record]:
        """Iterate over the valid records from physical offset `start` (of a record), in log order; skip damage."""
        for item in self.walk(start, check_crc=check_crc):
            if isinstance(item, Record):
                yield item

    def walk(self, start: int | None = None, *, check_crc: bool = True) -> Iterator[Record | Damage | LogEnd]:
        """Iterate over records and the damage between them; the last item is the LogEnd."""
        segments = [s for s in self.segments() if start is None or s.end > start]
        # No checksum covers the store time: a single damaged one must not hide all later records.
        last_times_ms = deque([0] * _COMPARED_TIMES, maxlen=_COMPARED_TIMES)
        position = 0 if start is None or not segments else max(start - segments[0].base, 0)
        for number, segment in enumerate(segments):
            if number and segment.base != segments[number - 1].end:
                gap = segments[number - 1]
                if segment.base > gap.end:
                    if self._first_sound(segments[number:], min(last_times_ms)) is None:
                        yield LogEnd(gap.end, gap, 0, "the file was truncated there, and no valid record follows")
                        return
                    missing = f"{self.path}/commitlog/{gap.end:020d}"
                    yield Damage(missing, 0, gap.end, segment.base - gap.end, "the file is missing or truncated")
            view = _map(segment)
            try:
                while True:
                    reason = ""
                    for item in _records_of(view, segment, position, check_crc=check_crc):
                        if isinstance(item, Record):
                            last_times_ms.append(item.store_timestamp_ms)
                            position = item.physical_offset + item.size - segment.base
                            yield item
                        else:
                            position, reason = item
                    if not reason:
                        break
                    found = _next_sound(view, segment, position, min(last_times_ms))
                    if found is None:
                        following = self._first_sound(segments[number + 1 :], min(last_times_ms))
                        if following is None:
                            yield LogEnd(segment.base + position, segment, _torn_bytes(segment, position), reason)
                            return
                        lost = segment.file_bytes - position
                        yield Damage(segment.path, position, segment.base + position, lost, reason)
                        break
                    yield Damage(segment.path, position, segment.base + position, found - position, reason)
                    position = found
            finally:
                view.close()
            position = 0
        end = segments[-1].end if segments else 0
        yield LogEnd(end, None, 0, "the last file is full")

    def _first_sound(self, segments: list[SegmentInfo], not_before_ms: int) -> int | None:
        for segment in segments:
            view = _map(segment)
            try:
                found = _next_sound(view, segment, -1, not_before_ms)
            finally:
                view.close()
            if found is not None:
                return segment.base + found
        return None

    def record_at(self, offset: int, segments: Sequence[SegmentInfo] | None = None) -> Record | None:
        """Return the record that starts at a physical offset; None if there is no valid one.

        `segments`: the log's files in order, for callers with many offsets; by default, the folder is listed.
        """
        if segments is None:
            segments = self.segments()
        number = bisect_right(segments, offset, key=attrgetter("base")) - 1
        if number < 0 or offset >= segments[number].end:
            return None
        segment = segments[number]
        with open(segment.path, "rb", buffering=0) as file:
            head = os.pread(file.fileno(), SIZE_AND_MAGIC.size, offset - segment.base)
            if len(head) < SIZE_AND_MAGIC.size:
                return None
            size = SIZE_AND_MAGIC.unpack(head)[0]
            if not FIXED_BYTES <= size <= segment.end - offset:
                return None
            data = os.pread(file.fileno(), size, offset - segment.base)
        try:
            record = decode_record(data)
        except RecordError:
            return None
        return record if record.physical_offset == offset else None

    # -- queues and index -----------------------------------------------------------------------------------------

    def queues(self) -> Iterator[tuple[str, int]]:
        """Iterate over topic and queue id of each queue that has a folder."""
        for topic in _names(f"{self.path}/consumequeue"):
            for name in _names(f"{self.path}/consumequeue/{topic}"):
                if name.isascii() and name.isdigit():
                    yield topic, int(name)

    def queue_files(self, topic: str, queue_id: int) -> list[tuple[int, str, int]]:
        """Return first byte (in the queue), path and size of each file of a queue."""
        folder = f"{self.path}/consumequeue/{topic}/{queue_id}"
        names = [name for name in _names(folder) if len(name) == 20 and name.isascii() and name.isdigit()]
        return [(int(name), f"{folder}/{name}", os.stat(f"{folder}/{name}").st_size) for name in names]

    def entries(self, topic: str, queue_id: int) -> Iterator[QueueEntry]:
        """Iterate over the entries of a queue, including blank ones, up to the first unused position."""
        for start, path, file_bytes in self.queue_files(topic, queue_id):
            number = start // QUEUE_ENTRY.size
            with open(path, "rb") as file:
                for position in range(0, file_bytes, QUEUE_ENTRY.size * 10_000):
                    data = os.pread(file.fileno(), QUEUE_ENTRY.size * 10_000, position)
                    for offset, size, code in QUEUE_ENTRY.iter_unpack(data[: len(data) - len(data) % QUEUE_ENTRY.size]):
                        if size <= 0 or offset < 0:
                            return
                        yield QueueEntry(number, offset, size, code)
                        number += 1

    def index_files(self) -> list[str]:
        """Return the paths of the index files, oldest first."""
        names = [name for name in _names(f"{self.path}/index") if len(name) == 17 and name.isdigit()]
        return [f"{self.path}/index/{name}" for name in names]


def is_torn(properties: bytes, position: int) -> bool:
    """Return whether a page of a record's properties, at `position` of their file, probably never reached the disk.

    The format's checksum covers only the body. Unwritten bytes are zero up to the end of a page, or from its start, or
    up to the end of the record. Text with a NUL exactly there is extremely unlikely.
    """
    return any(
        run.end() == len(properties)
        or (position + run.end()) % _PAGE_BYTES == 0
        or (position + run.start()) % _PAGE_BYTES == 0
        for run in _ZERO_RUN.finditer(properties)
    )


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _map(segment: SegmentInfo) -> mmap.mmap:
    if segment.file_bytes == 0:
        return mmap.mmap(-1, 1)
    with open(segment.path, "rb") as file:
        return mmap.mmap(file.fileno(), segment.file_bytes, access=mmap.ACCESS_READ)


def _records_of(
    view: mmap.mmap, segment: SegmentInfo, position: int, *, check_crc: bool
) -> Iterator[Record | tuple[int, str]]:
    """Iterate over records from `position`; if they stop before the segment's end, also yield position and reason."""
    end = segment.file_bytes
    while end - position >= BLANK_BYTES:
        size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
        if magic == BLANK_MAGIC and size == end - position:
            return
        try:
            if magic != MESSAGE_MAGIC or not FIXED_BYTES <= size <= end - position:
                raise RecordError(f"size {size} and magic {magic:#010x} are not those of a record")
            record = decode_record(view[position : position + size], check_crc=check_crc)
            if record.physical_offset != segment.base + position:
                raise RecordError(f"the record states offset {record.physical_offset} as its own")
            if b"\0" in record.raw_properties and is_torn(
                record.raw_properties, position + size - len(record.raw_properties)
            ):
                raise RecordError("part of its properties was never written")
        except RecordError as error:
            yield position, str(error)
            return
        yield record
        position += size


def _next_sound(view: mmap.mmap, segment: SegmentInfo, position: int, not_before_ms: int) -> int | None:
    """Return the first valid record after `position` that was not stored before `not_before_ms`; None without one."""
    with open(segment.path, "rb") as file:
        at = position + 1
        while at < segment.file_bytes:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                return None
            piece = os.pread(file.fileno(), _PIECE_BYTES, at)
            for candidate in possible_starts(piece, at):
                if candidate > position and _is_sound(view, segment, candidate, not_before_ms):
                    return candidate
            if len(piece) < _PIECE_BYTES:
                return None
            at += len(piece) - MAGIC_OVERLAP_BYTES
    return None


def _is_sound(view: mmap.mmap, segment: SegmentInfo, position: int, not_before_ms: int) -> bool:
    stated_at = position + PHYSICAL_OFFSET_AT
    if int.from_bytes(view[stated_at : stated_at + PHYSICAL_OFFSET_BYTES], "big") != segment.base + position:
        return False
    size = int.from_bytes(view[position : position + SIZE_BYTES], "big")
    try:
        record = decode_record(view[position : position + size])
    except RecordError:
        return False
    torn = is_torn(record.raw_properties, position + size - len(record.raw_properties))
    return record.store_timestamp_ms >= not_before_ms and not torn


def _torn_bytes(segment: SegmentInfo, position: int) -> int:
    """Return the number of bytes from `position` up to the last byte that is not zero."""
    last = position
    with open(segment.path, "rb") as file:
        at = position
        while at < segment.file_bytes:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            piece = os.pread(file.fileno(), _PIECE_BYTES, at)
            if used_bytes := len(piece.rstrip(b"\0")):
                last = at + used_bytes
            at += len(piece)
            if not piece:
                break
    return last - position
