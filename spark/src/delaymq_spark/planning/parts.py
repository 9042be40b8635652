"""Division of a log into parts for tasks.

A part starts at a record: at the start of a segment, or within it at a record that is also in a consume queue. A body
can look like a record, but only the broker writes consume queues. Without them, a segment is one part.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from delaymq.message.errors import RecordError
from delaymq.message.names import topic_problem
from delaymq.message.record import ENCODED_MAGIC, MAGIC_AT, MAGIC_OVERLAP_BYTES, SIZE_BYTES, decode_record
from delaymq.store.reader import QUEUE_ENTRY, SegmentInfo

from delaymq_spark.planning.log_end import reaches
from delaymq_spark.planning.time_range import FirstTimes, excluded_segments
from delaymq_spark.scan.walk import Walk, sound_at
from delaymq_spark.store.broker_client import NoAnswerError
from delaymq_spark.store.remote import RemoteSegment, record_starts
from delaymq_spark.store.segments import (
    NAME_DIGITS,
    SegmentFile,
    Skipped,
    StorePath,
    list_segments,
    open_segment,
    read_bytes,
)

_SEARCH_BYTES: Final = 8 << 20
"""Maximum distance between the wished start of a part and its actual start."""
_PIECE_BYTES: Final = 1 << 20
_MAX_TRIES: Final = 64
"""Maximum number of records to try, so that a log without consume queues is not searched completely."""
_Found = TypeVar("_Found")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a segment, from the start of a record to the end of a record."""

    segment: SegmentInfo
    start: int
    """Physical offset."""
    end: int

    @property
    def bytes_count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Plan:
    """What to read, fixed at planning time: it excludes records appended later."""

    parts: tuple[Part, ...]
    start: int
    """Physical offset of the log's first byte."""
    end: int
    """Physical offset after the last complete record."""
    skipped: tuple[Skipped, ...]
    """Skipped parts known before reading."""


def plan(
    path: StorePath,
    split_bytes: int,
    start: int | None = None,
    end: int | None = None,
    *,
    from_ms: int | None = None,
    until_ms: int | None = None,
) -> Plan:
    """Plan parts of about `split_bytes` of the store at `path`, or of the range between the ends of two earlier
    plans.

    With store times, segments without records of that time have no part (time_range). StorePathError if nothing is
    readable.
    """
    listing = list_segments(path)
    times = FirstTimes()
    planner = Planner(str(path), split_bytes, listing.skipped, end)
    wanted = [info for info in listing.segments if start is None or info.end > start]
    count = len(wanted) if end is None else sum(info.base < end for info in wanted)
    out = excluded_segments(wanted[: count + 1], times, from_ms, until_ms)
    segments = [info for info in wanted[:count] if info.base not in out]
    first = listing.start
    # The log does not end before a segment that contains records.
    closed = max(out, default=-1)
    if listing.end is None and count < len(wanted) and times.of(wanted[count]) is not None:
        closed = max(closed, wanted[count].base)
    log_end = max(first, start or 0, closed, listing.end or 0)
    last_parts: list[Part] = []
    # The files at the end may still be empty: they are allocated in advance.
    while listing.end is None and segments and segments[-1].base > closed and not last_parts:
        info = segments.pop()
        before = [each for each in wanted if each.base < info.base]
        last_parts, log_end = planner.last_segment(info, before, start or 0) or ([], log_end)
    parts: list[Part] = []
    for info in segments:
        parts += planner.segment(info, max(info.base, start or 0)) or []
    parts += last_parts
    if end is not None:
        parts = [Part(part.segment, part.start, min(part.end, end)) for part in parts if part.start < end]
        log_end = min(log_end, end)
    # Gaps after the end of the log do not matter.
    gaps = [gap for gap in listing.gaps if max(first, start or 0) <= gap.offset < log_end]
    return Plan(tuple(parts), first, log_end, (*planner.skipped, *gaps))


class Planner:
    """Finds the parts of segments sequentially."""

    def __init__(self, path: str, split_bytes: int, skipped: Sequence[Skipped] = (), end: int | None = None) -> None:
        self._path = path
        self._split_bytes = split_bytes
        self.skipped = list(skipped)
        self._end = end
        """Physical offset after which no part is needed."""
        self._may_ask = True

    def segment(self, info: SegmentInfo, begin: int) -> list[Part] | None:
        """Return the parts of a segment whose end is known; None if it is unreadable."""
        if isinstance(info, RemoteSegment):
            return self._remote_segment(info, begin)
        return self._with_file(info, lambda file: _parts(info, self._starts(file, info, begin), info.end))

    def _remote_segment(self, info: RemoteSegment, begin: int) -> list[Part] | None:
        starts = [begin]
        if self._wanted_end(info) - begin > self._split_bytes * 3 // 2:
            found = self._remote_starts(info)
            if found is None:
                return None
            starts += [each for each in found if begin + self._split_bytes // 2 <= each < info.end]
        return _parts(info, starts, info.end)

    def _remote_starts(self, info: RemoteSegment) -> list[int] | None:
        """Return the positions of records in the segment, from its broker; None if it has deleted the segment."""
        try:
            return record_starts(info, self._split_bytes) if self._may_ask else []
        except FileNotFoundError as error:
            self._unreadable(info, error)
            return None
        except OSError as error:
            # The segment is then one part: a broker that restarts may be available again when it is read. A broker that
            # did not respond is not queried again for each segment.
            self._may_ask = not isinstance(error, NoAnswerError)
            _logger.warning("%s is not split: %s", info.path, error.strerror)
            return []

    def last_segment(
        self, info: SegmentInfo, before: Sequence[SegmentInfo], start: int
    ) -> tuple[list[Part], int] | None:
        """Return the parts of the segment that may contain the log's last record, and its end; None: it contains
        none, or the log ends in one of the segments `before` it.
        """
        return self._with_file(info, lambda file: self._last_segment(file, info, before, start))

    def record_near(self, info: SegmentInfo, start: int, wished: int) -> int | None:
        """Return the physical offset of a record of the segment, after `start` and near `wished`; None if none is
        known.
        """
        if isinstance(info, RemoteSegment):
            # A broker returns one about every split_bytes.
            found = [each for each in self._remote_starts(info) or () if start < each < info.end]
            before = [each for each in found if each <= wished]
            return before[-1] if before else next(iter(found), None)
        position = self._with_file(info, lambda file: self._record_in_queue(file, wished - info.base))
        return None if position is None else info.base + position

    def _last_segment(
        self, file: SegmentFile, info: SegmentInfo, before: Sequence[SegmentInfo], start: int
    ) -> tuple[list[Part], int] | None:
        begin = max(info.base, start)
        starts = self._starts(file, info, begin)
        # Data skipped between the records here is reported by the tasks that read them.
        walk = Walk(file, starts[-1], self._wanted_end(info), lambda skipped: None, info.end, to_log_end=True)
        holds_records = sum(1 for _ in walk.windows()) > 0
        end = walk.reached
        torn = walk.torn_bytes
        if holds_records and begin == info.base and not reaches(file, info, before, start):
            reason = "the log ends in an earlier file, because no valid record follows the damage there"
            self.skipped.append(Skipped(info.path, 0, info.base, end + torn - info.base, reason, at_end=True))
            return None
        if torn:
            reason = "the log does not end with a complete record"
            self.skipped.append(Skipped(info.path, end - info.base, end, torn, reason, at_end=True))
        if starts[-1] == info.base and not holds_records:
            return None  # the end of the log cannot be in a file that was truncated to a few bytes
        return (_parts(info, starts, end), end) if end > begin else None

    def _starts(self, file: SegmentFile, info: SegmentInfo, begin: int) -> list[int]:
        starts = [begin]
        wished = begin + self._split_bytes
        wanted_end = self._wanted_end(info)
        while wished < wanted_end - self._split_bytes // 2:
            found = self._record_in_queue(file, wished - file.base)
            if found is not None:
                starts.append(file.base + found)
            wished = max(wished, starts[-1]) + self._split_bytes
        return starts

    def _wanted_end(self, info: SegmentInfo) -> int:
        return info.end if self._end is None else min(info.end, self._end)

    def _record_in_queue(self, file: SegmentFile, wished: int) -> int | None:
        """Return the first byte after `wished` at which a record from its consume queue starts."""
        tries = 0
        at = file.next_data(wished)
        end = min(at + _SEARCH_BYTES, file.file_bytes)
        while at < end:
            piece = read_bytes(file, at, _PIECE_BYTES)
            hit = piece.find(ENCODED_MAGIC)
            while hit >= 0:
                candidate = at + hit - MAGIC_AT
                if candidate >= wished and sound_at(file, candidate) is not None:
                    if self._is_in_queue(file, candidate):
                        return candidate
                    tries += 1
                    if tries >= _MAX_TRIES:
                        return None
                hit = piece.find(ENCODED_MAGIC, hit + 1)
            if len(piece) < _PIECE_BYTES:
                return None
            at = file.next_data(at + len(piece) - MAGIC_OVERLAP_BYTES)
        return None

    def _is_in_queue(self, file: SegmentFile, position: int) -> bool:
        size = int.from_bytes(read_bytes(file, position, SIZE_BYTES), "big")
        try:
            record = decode_record(memoryview(read_bytes(file, position, size)))
        except RecordError:
            return False
        # The topic becomes part of a path.
        if topic_problem(record.topic) is not None or record.queue_id < 0 or record.queue_offset < 0:
            return False
        folder = f"{self._path}/consumequeue/{record.topic}/{record.queue_id}"
        byte = record.queue_offset * QUEUE_ENTRY.size
        try:
            names = [name for name in os.listdir(folder) if len(name) == NAME_DIGITS and name.isdigit()]
            name = max((name for name in names if int(name) <= byte), default=None)
            if name is None:
                return False
            with open(f"{folder}/{name}", "rb") as queue:
                entry = os.pread(queue.fileno(), QUEUE_ENTRY.size, byte - int(name))
        except (OSError, OverflowError):
            return False
        if len(entry) < QUEUE_ENTRY.size:
            return False
        return QUEUE_ENTRY.unpack(entry)[:2] == (record.physical_offset, record.size)

    def _with_file(self, info: SegmentInfo, look: Callable[[SegmentFile], _Found]) -> _Found | None:
        try:
            file = open_segment(info)
            try:
                return look(file)
            finally:
                file.close()
        except OSError as error:
            self._unreadable(info, error)
            return None

    def _unreadable(self, info: SegmentInfo, error: OSError) -> None:
        reason = f"cannot be read: {error.strerror or error}"
        if isinstance(error, FileNotFoundError):
            reason = "the file was deleted in the meantime"
        self.skipped.append(Skipped(info.path, 0, info.base, info.file_bytes, reason))


def _parts(info: SegmentInfo, starts: list[int], end: int) -> list[Part]:
    starts = [start for start in starts if start < end]
    return [Part(info, start, following) for start, following in zip(starts, [*starts[1:], end], strict=True)]
