"""Reading of commit log segments for HTTP: ranges, and starts of records. Thread-safe.

A descriptor is opened for each response, because the store may close its own while a thread reads.
"""

import os
import re
from dataclasses import dataclass
from typing import Final

from delaymq.message.errors import RecordError
from delaymq.message.record import (
    ENCODED_MAGIC,
    FIXED_BYTES,
    MAGIC_OVERLAP_BYTES,
    MAX_HEAD_BYTES,
    PHYSICAL_OFFSET_AT,
    PHYSICAL_OFFSET_BYTES,
    SIZE_BYTES,
    possible_starts,
)
from delaymq.server.log_reader import read_cut
from delaymq.store.reader import is_torn
from delaymq.store.untrusted_offsets import MAX_REFERENCED_BYTES

CHUNK_BYTES: Final = 256 * 1024
"""Size of the chunks that a thread reads and the loop sends, which takes some 0.1 ms."""
SEARCH_BYTES: Final = 8 * 1024 * 1024
"""Maximum range of a search for the start of a record."""
_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


class RangeError(ValueError):
    """An unsatisfiable range; the text states the valid ones."""


@dataclass(frozen=True, slots=True)
class Found:
    """Data that looks like a record; only its queue can confirm that it is not part of a message body."""

    position: int
    """Position in the segment."""
    topic: str
    queue_id: int
    queue_offset: int
    size: int


def parse_range(header: str | None, readable_bytes: int) -> tuple[int, int] | None:
    """Parse a Range header as first and end position; None: the whole segment. Raises RangeError."""
    if header is None or not header.lower().startswith("bytes="):
        return None
    match = _RANGE.fullmatch(header.lower().strip())
    if match is None or not (match[1] or match[2]):
        raise RangeError("request a single range, such as bytes=0-1048575")
    if not match[1]:
        start, end = max(readable_bytes - int(match[2]), 0), readable_bytes
    else:
        start = int(match[1])
        end = min(int(match[2]) + 1, readable_bytes) if match[2] else readable_bytes
        if match[2] and int(match[2]) < start:
            raise RangeError("the range ends before it starts")
    if start >= end:
        raise RangeError(f"the range is outside the {readable_bytes} readable bytes")
    return start, end


def open_segment(path: str) -> int:
    """Open a segment for reading; raise FileNotFoundError if it was deleted."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def read_chunk(descriptor: int, position: int, end: int) -> bytes:
    """Read at most CHUNK_BYTES from `position`, up to `end`."""
    return os.pread(descriptor, min(CHUNK_BYTES, end - position), position)


def records_after(descriptor: int, base: int, position: int, end: int, count: int) -> list[Found]:
    """Return the first `count` candidates for records from `position`, within SEARCH_BYTES."""
    found: list[Found] = []
    end_of_search = min(position + SEARCH_BYTES, end)
    at = position
    while at < end_of_search:
        piece = read_chunk(descriptor, at, end)
        for candidate in possible_starts(piece, at):
            record = _record_at(descriptor, base, candidate, end) if candidate >= position else None
            if record is not None:
                found.append(record)
                if len(found) == count:
                    return found
        if at + len(piece) >= end or len(piece) < len(ENCODED_MAGIC):
            break
        at += len(piece) - MAGIC_OVERLAP_BYTES
    return found


def _record_at(descriptor: int, base: int, position: int, end: int) -> Found | None:
    head = os.pread(descriptor, MAX_HEAD_BYTES, position)
    size = int.from_bytes(head[:SIZE_BYTES], "big")
    stated_offset = int.from_bytes(head[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + PHYSICAL_OFFSET_BYTES], "big")
    if stated_offset != base + position or not FIXED_BYTES <= size <= min(end - position, MAX_REFERENCED_BYTES):
        return None
    try:
        # A body may contain many fake headers that claim megabytes each, so bodies are not read.
        record = read_cut(descriptor, position, head, size, 0).record
    except RecordError:
        return None
    if is_torn(record.raw_properties, position + size - len(record.raw_properties)):
        return None
    return Found(position, record.topic, record.queue_id, record.queue_offset, size)
