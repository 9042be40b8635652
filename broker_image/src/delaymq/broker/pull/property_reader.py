"""Reader for the raw properties of a queue's records. Large bodies are not read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from mmap import mmap
from typing import Final

from delaymq.broker.pull.needle_search import find_needle, properties_at
from delaymq.message import flags
from delaymq.message.record import (
    BODY_LENGTH,
    BODY_LENGTH_BYTES,
    HEAD,
    MAX_HEAD_BYTES,
    MESSAGE_MAGIC,
    OUTLINE,
    body_at,
)
from delaymq.store.consume_queue import ENTRY

WINDOW_BYTES: Final = 16 * 1024
"""Bytes read at a time, outside of a mapped segment, if the queue's records are adjacent. Otherwise reading single
records is cheaper.
"""
LARGE_RECORD_BYTES: Final = 8 * 1024
"""If the record is larger than this, its tail is read separately from its head."""
MAX_SEARCHED_BYTES: Final = 1_024
"""Longer properties are not searched for a needle. The filter examines them and counts their length as work."""

Row = tuple[int, tuple[int, int, int]]
"""Number of an entry among those read, and the entry: physical offset, size, tags code."""

_HEAD_AT: Final = OUTLINE.unpack_from


class PropertyReader:
    """Reader of records in the order of a queue, for one pull.

    `read(physical offset, size)` returns bytes of the log. `window` are bytes from physical offset `base` on that need
    not be read: a mapped segment. Bodies in it are not touched.
    """

    __slots__ = ("_base", "_found", "_read", "_window", "ahead", "work_left")

    def __init__(
        self, read: Callable[[int, int], bytes], work: int = 0, window: bytes | mmap = b"", base: int = 0
    ) -> None:
        self._read = read
        self._base = base
        self._window = window
        self._found: tuple[int, bytes | mmap, int, int] | None = None
        """Physical offset of the record that `candidates` yielded last, and where its properties are in a window."""
        self.ahead = 0
        """Entries that were searched behind the last one that `candidates` yielded; `work_left` excludes them."""
        self.work_left = work
        """Remaining units of work, of about 1 µs each. Callers that examine properties deduct their work."""

    def candidates(self, entries: bytes, needle: bytes, most: int) -> Iterator[Row]:
        """Yield those of the queue's `entries` whose properties may contain `needle`.

        `most` of them, at least 1, are searched for together. Each skipped entry costs one unit of work. When no work
        is left, the next entry is yielded unconditionally.
        """
        place, count, moved_to = 0, len(entries) // ENTRY.size, -1
        while True:
            work, window = max(self.work_left, 0), self._window
            found, following = find_needle(window, self._base, entries, place, needle, work, MAX_SEARCHED_BYTES, most)
            for number, begin, end in found:
                # Not earlier: work that is used up would end each pull before its first candidate.
                self.work_left -= number - place
                place = number + 1
                self.ahead = following - place
                entry = ENTRY.unpack_from(entries, number * ENTRY.size)
                self._found = entry[0], window, begin, end
                yield number, entry
            self.work_left -= following - place
            place, self.ahead = following, 0
            if place == count:
                return
            if len(found) == most:
                continue
            entry = ENTRY.unpack_from(entries, place * ENTRY.size)
            physical_offset, size, _ = entry
            at = physical_offset - self._base
            is_outside = at < 0 or at + size > len(self._window)
            if is_outside and moved_to != place and HEAD.size <= size <= LARGE_RECORD_BYTES:
                self._move(physical_offset, size)
                moved_to = place
                continue
            self._found = None
            yield place, entry
            place += 1

    def __call__(self, physical_offset: int, size: int) -> bytes | None:
        """Return the property bytes of the record at an offset, or None if there is no such record."""
        found, window = self._found, self._window
        if found is not None and found[0] == physical_offset:
            return found[1][found[2] : found[3]]
        at = physical_offset - self._base
        if at < 0 or at + size > len(window):
            if size > LARGE_RECORD_BYTES:
                return self._of_large(physical_offset, size)
            window = self._move(physical_offset, size)
            at = 0
        end = at + size
        if size < HEAD.size or end > len(window):
            return None
        stated, magic, sys_flag, body_length = _HEAD_AT(window, at)
        if stated != size or magic != MESSAGE_MAGIC:
            return None
        topic_at = at + HEAD.size + body_length
        if sys_flag & flags.HOST_MASK:
            topic_at = _topic_behind_wide_head(window, at, end, sys_flag)
        if body_length < 0 or not at < topic_at < end:
            return None
        return _last_part(window, topic_at, end)

    def _move(self, physical_offset: int, size: int) -> bytes | mmap:
        follows = 0 <= physical_offset - self._base <= len(self._window)
        window = self._read(physical_offset, WINDOW_BYTES) if follows else b""
        # `read` returns nothing if the window crosses the end of the log or of a file.
        self._window = window or self._read(physical_offset, size)
        self._base = physical_offset
        return self._window

    def _of_large(self, physical_offset: int, size: int) -> bytes | None:
        head = self._read(physical_offset, MAX_HEAD_BYTES)
        if len(head) < HEAD.size:
            return None
        stated, magic, sys_flag, body_length = _HEAD_AT(head)
        topic_at = HEAD.size + body_length
        if sys_flag & flags.HOST_MASK:
            topic_at = _topic_behind_wide_head(head, 0, len(head), sys_flag)
        if stated != size or magic != MESSAGE_MAGIC or not 0 < topic_at < size:
            return None
        tail = self._read(physical_offset + topic_at, size - topic_at)
        return _last_part(tail, 0, len(tail)) if tail else None


def _topic_behind_wide_head(data: bytes | mmap, at: int, end: int, sys_flag: int) -> int:
    """Return the position of the topic's length if a host is IPv6, or -1 if `data` ends before it is known."""
    begin = at + body_at(sys_flag)
    if begin > end:
        return -1
    body_length: int = BODY_LENGTH.unpack_from(data, begin - BODY_LENGTH_BYTES)[0]
    return begin + body_length if body_length >= 0 else -1


def _last_part(data: bytes | mmap, topic_at: int, end: int) -> bytes | None:
    """Return the properties, which follow the topic at the end of a record."""
    begin = properties_at(data, topic_at, end)
    return None if begin is None else data[begin:end]
