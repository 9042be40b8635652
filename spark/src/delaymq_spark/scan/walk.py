"""Iteration over the records of a part of a segment, window by window, and over damaged places between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from delaymq.message.errors import RecordError
from delaymq.message.record import (
    ENCODED_MAGIC,
    FIXED_BYTES,
    MAGIC_AT,
    MAGIC_OVERLAP_BYTES,
    PHYSICAL_OFFSET_AT,
    SIZE_BYTES,
    UP_TO_PHYSICAL_OFFSET,
    decode_record,
)
from delaymq.store.reader import is_torn

from delaymq_spark.scan.frames import Frames, Window, frames_of, problem_at
from delaymq_spark.store.segments import SegmentFile, Skipped, read_bytes

WINDOW_BYTES: Final = 4 << 20
"""Bytes of the log that an executor holds at a time, few enough for the processor's cache; one batch of rows."""
MAX_RECORD_BYTES: Final = 256 << 20
"""A damaged size must not claim the executor's memory; the real broker's default limit is 4 MiB."""
_PIECE_BYTES: Final = 1 << 20
_COMPARED_TIMES: Final = 3
"""Records after damage were not stored before the earliest of this number of records before it, as in recovery."""
_ZEROS: Final = memoryview(bytes(_PIECE_BYTES))


@dataclass(slots=True)
class Walk:
    """A pass over a part of a segment, from physical offset `start` (of a record) to `end` (the end of a record)."""

    file: SegmentFile
    start: int
    end: int
    tell: Callable[[Skipped], None]
    segment_end: int
    """Physical offset after the segment."""
    to_log_end: bool = False
    """Whether `end` is only an upper bound: missing records after the last one are not reported."""
    reached: int = -1
    """Result: end of the last record, or `end` if a blank record closes the segment."""
    torn_bytes: int = 0
    """Result, with `to_log_end`: bytes from there to the last non-zero byte of the segment."""

    def windows(self) -> Iterator[tuple[Window, Frames]]:
        """Yield windows and their valid records. Windows are reused. OSError."""
        base = self.file.base
        position, end = self.start - base, self.end - base
        self.reached = self.start
        window_bytes = max(min(WINDOW_BYTES, end - position), 1)
        data = bytearray(window_bytes)
        # No checksum covers the store time: a single damaged one must not hide all later records.
        last_times_ms = deque([0] * _COMPARED_TIMES, maxlen=_COMPARED_TIMES)
        while position < end:
            wanted = min(window_bytes, end - position)
            # A record larger than a window had a separate window.
            if len(data) < wanted or len(data) > max(wanted, WINDOW_BYTES):
                data = bytearray(wanted)
            count = self.file.read_into(position, memoryview(data)[:wanted])
            window = Window(data, count, base + position, base)
            frames, stop = frames_of(window, 0) if count >= FIXED_BYTES else (None, 0)
            if frames is not None and len(frames):
                last_times_ms.extend(int(window.i8[int(at)]) for at in frames.store_time_at[-_COMPARED_TIMES:])
                self.reached = base + position + stop
                yield window, frames
            if position + stop >= end:
                return
            problem = problem_at(window, stop, self.segment_end)
            position += stop
            if problem == "":
                self.reached = self.end
                return
            if problem is None:
                problem = self._why_not_whole(window, stop, position, end, short=count < wanted)
                if problem is None:
                    window_bytes = WINDOW_BYTES
                    if stop == 0:
                        window_bytes = max(WINDOW_BYTES, int(window.u4[0]))
                    continue
            window_bytes = WINDOW_BYTES
            del window, frames
            following, written_end = next_sound(self.file, position, end, min(last_times_ms))
            if following is None:
                if self.to_log_end:
                    self.torn_bytes = written_end - position
                else:
                    self._skip(position, end, problem)
                return
            self._skip(position, following, problem)
            position = following

    def _why_not_whole(self, window: Window, stop: int, position: int, end: int, *, short: bool) -> str | None:
        """Return why the record at `position`, partly in the window, cannot be complete; None: it can."""
        if short:
            return "the file was truncated while it was read"
        available = window.used_bytes - stop
        if available < UP_TO_PHYSICAL_OFFSET.size:
            return "incomplete record" if end - position <= available else None
        size = int(window.u4[stop])
        if int(window.i8[stop + PHYSICAL_OFFSET_AT]) != window.offset + stop:
            return f"the record states physical offset {int(window.i8[stop + PHYSICAL_OFFSET_AT])}"
        if size > MAX_RECORD_BYTES:
            return f"a record of {size} bytes exceeds the maximum of {MAX_RECORD_BYTES}"
        if position + size > end:
            return f"a record of {size} bytes extends beyond offset {window.segment_base + end}"
        return None

    def _skip(self, position: int, end: int, reason: str) -> None:
        base = self.file.base
        self.tell(Skipped(self.file.name, position, base + position, end - position, reason))


def next_sound(file: SegmentFile, position: int, end: int, not_before_ms: int) -> tuple[int | None, int]:
    """Return the first byte after `position` and before `end` at which a valid record, including its checksum,
    starts.

    Also returns the byte after the last non-zero one if there is no such record. The record must not have been stored
    before `not_before_ms`. OSError.
    """
    written_end = position + len(read_bytes(file, position, 1).rstrip(b"\0"))
    at = position + 1
    while (at := file.next_data(at)) < end:
        piece = read_bytes(file, at, min(_PIECE_BYTES, end - at + MAGIC_OVERLAP_BYTES))
        # Most of the bytes were never written, and comparing is faster than searching.
        is_written = piece != _ZEROS[: len(piece)]
        if is_written:
            written_end = min(at + len(piece.rstrip(b"\0")), end)
        hit = piece.find(ENCODED_MAGIC) if is_written else -1
        while hit >= 0:
            candidate = at + hit - MAGIC_AT
            if position < candidate < end:
                stored_ms = sound_at(file, candidate)
                if stored_ms is not None and stored_ms >= not_before_ms:
                    return candidate, written_end
            hit = piece.find(ENCODED_MAGIC, hit + 1)
        if len(piece) < _PIECE_BYTES:
            break
        at += len(piece) - MAGIC_OVERLAP_BYTES
    return None, written_end


def sound_at(file: SegmentFile, position: int) -> int | None:
    """Return the store time in ms of the valid record at byte `position`; None if there is none."""
    if position < 0:
        return None
    head = read_bytes(file, position, UP_TO_PHYSICAL_OFFSET.size)
    if len(head) < UP_TO_PHYSICAL_OFFSET.size:
        return None
    if int.from_bytes(head[PHYSICAL_OFFSET_AT:], "big") != file.base + position:
        return None
    size = int.from_bytes(head[:SIZE_BYTES], "big")
    if not FIXED_BYTES <= size <= min(file.file_bytes - position, MAX_RECORD_BYTES):
        return None
    try:
        record = decode_record(memoryview(read_bytes(file, position, size)))
    except RecordError:
        return None
    if is_torn(record.raw_properties, position + size - len(record.raw_properties)):
        return None
    return record.store_timestamp_ms
