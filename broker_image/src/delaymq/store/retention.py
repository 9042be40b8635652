"""Deletion of old files by RocketMQ's rules, and pins that protect data still in use."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import ConsumeQueue, ConsumeQueues
from delaymq.store.disk.files import Files
from delaymq.store.index.key_index import KeyIndex
from delaymq.store.model import DiskState
from delaymq.store.options import StoreOptions

_logger = logging.getLogger(__name__)
MAX_SEGMENTS_PER_PASS = 10
MAX_EXPIRED_SEGMENTS = 64
"""Segments that one call examines for expiry."""
MAX_QUEUES_PER_PASS = 2_000
"""Checking all of 80,000 queues in one cycle would block the event loop."""
_HOUR_MS = 3_600_000


class ExpiredLog(NamedTuple):
    """The part of the log that is to be deleted next."""

    end: int
    """Physical offset of its end."""
    left_ms: int
    """Time until the deletion, in ms."""
    is_urgent: bool
    """Whether the disk is so full that segments are deleted at any hour."""
    is_early: bool = False
    """Whether it consists of the oldest segment, which has not been kept for the retention time."""


class PinReport(NamedTuple):
    """Data that a pin protects from deletion."""

    holder: str
    offset: int
    pinned_bytes: int


class Pins:
    """Named pins and the oldest physical offset that each protects."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._holders: dict[str, Callable[[], int | None]] = {}
        self._giving_way: set[str] = set()

    def hold(self, name: str, oldest: Callable[[], int | None], *, gives_way: bool = False) -> None:
        """Add or replace a pin. `oldest` is called before each deletion and returns None if nothing is to be kept.

        `gives_way`: ignore the pin when the disk is so full that segments are deleted regardless of age.
        """
        self._holders[name] = oldest
        if gives_way:
            self._giving_way.add(name)

    def release(self, name: str) -> None:
        """Remove a pin."""
        self._holders.pop(name, None)
        self._giving_way.discard(name)

    def oldest(self, *, disk_nearly_full: bool = False) -> int | None:
        """Return the oldest pinned offset; pins added with `gives_way` are ignored if the disk is nearly full."""
        offsets = [
            offset
            for name, holder in self._holders.items()
            if not (disk_nearly_full and name in self._giving_way) and (offset := holder()) is not None
        ]
        return min(offsets) if offsets else None

    def report(self) -> list[PinReport]:
        """Return each pin that protects data, with its offset and the number of bytes from there to the log's end."""
        reports = []
        for name, holder in self._holders.items():
            offset = holder()
            if offset is not None:
                held = max(offset, self._log.min_offset)
                reports.append(PinReport(name, offset, max(self._log.end_offset - held, 0)))
        return reports


class Retention:
    """Deletes files that are old enough, and determines when the disk is too full for writes."""

    def __init__(
        self,
        files: Files,
        store_path: str,
        options: StoreOptions,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex | None,
    ) -> None:
        self._files = files
        self._path = store_path
        self.options = options
        self._log = log
        self._queues = queues
        self._index = index
        self._left: Iterator[ConsumeQueue] = iter(())
        self._cleaned_for = log.min_offset
        self.reserve_bytes: Callable[[], int] = lambda: 0
        """Returns the bytes that must remain free for carrying messages forward."""
        self.pins = Pins(log)
        self.disk = DiskState(0.0, writes_refused=False)
        self.check_disk()

    def check_disk(self) -> DiskState:
        """Measure disk usage and store the result, which decides whether appends are accepted."""
        ratio = self._files.disk_used_ratio(self._path)
        refused = ratio > self.options.disk_write_refused_ratio or self.lacks_reserve()
        self.disk = DiskState(ratio, writes_refused=refused)
        return self.disk

    def lacks_reserve(self, *, besides_bytes: int = 0) -> bool:
        """Whether the disk lacks space for the reserve, besides this number of bytes."""
        reserve_bytes = self.reserve_bytes()
        return bool(reserve_bytes) and self._files.free_bytes(self._path) < reserve_bytes + besides_bytes

    def expired_log(self, now_ms: int) -> ExpiredLog:
        """Return the part of the log that has been kept for the retention time, by the store time of its last record.

        If the disk is nearly full, at least the oldest segment has expired.
        """
        log, options = self._log, self.options
        end, is_early = log.min_offset, False
        whatever_age = self.disk.used_ratio > options.disk_clean_ratio or self.disk.writes_refused
        for segment, following in pairwise(log.segments[: MAX_EXPIRED_SEGMENTS + 1]):
            # The first record of the next segment is not older than the last one of this segment.
            stored_ms = log.store_timestamp_at(following.base)
            if stored_ms is None or segment.base + log.file_bytes > log.flushed_offset:
                break
            if now_ms - stored_ms < options.file_reserved_hours * _HOUR_MS and not (
                whatever_age and segment is log.segments[0]
            ):
                break
            end = following.base
            is_early = now_ms - stored_ms < options.file_reserved_hours * _HOUR_MS
        return ExpiredLog(
            end,
            self._ms_until_deletion(now_ms),
            is_urgent=whatever_age or self.disk.used_ratio > options.disk_max_used_ratio,
            is_early=is_early,
        )

    def _ms_until_deletion(self, now_ms: int) -> int:
        now = time.localtime(now_ms / 1000)
        passed_ms = (now.tm_min * 60 + now.tm_sec) * 1_000
        hours = min(((hour - now.tm_hour - 1) % 24 + 1 for hour in self.options.delete_when), default=24)
        return max(hours * _HOUR_MS - passed_ms, 0)

    def clean(self, now_ms: int, *, at_any_hour: bool = False, index_in_use: bool = False) -> list[str]:
        """Run one deletion cycle; return the paths of deleted files.

        `at_any_hour`: ignore `delete_when`. `index_in_use`: keep index files, because a snapshot is writing them.
        """
        ratio = self.check_disk().used_ratio
        removed: list[str] = []
        by_age = at_any_hour or self._is_deletion_hour(now_ms) or ratio > self.options.disk_max_used_ratio
        if by_age or ratio > self.options.disk_clean_ratio:
            removed += self._clean_log(now_ms, whatever_age=ratio > self.options.disk_clean_ratio)
        removed += self._clean_queues()
        if self._index is not None and not index_in_use:
            removed += self._index.remove_files_below(self._log.min_offset)
        if removed:
            self.check_disk()
        return removed

    def _is_deletion_hour(self, now_ms: int) -> bool:
        return time.localtime(now_ms / 1000).tm_hour in self.options.delete_when

    def _clean_log(self, now_ms: int, *, whatever_age: bool) -> list[str]:
        removed: list[str] = []
        log = self._log
        pinned = self.pins.oldest(disk_nearly_full=whatever_age)
        while len(removed) < MAX_SEGMENTS_PER_PASS and len(log.segments) > 1:
            oldest = log.segments[0]
            end = oldest.base + log.file_bytes
            if end > log.removable_end or (pinned is not None and end > pinned):
                break
            facts = self._files.facts(oldest.path)
            age_ms = now_ms - facts.modified_ms if facts is not None else 0
            if not whatever_age and age_ms < self.options.file_reserved_hours * _HOUR_MS:
                break
            removed.append(log.remove_first())
        if removed:
            _logger.info("deleted %d log segments, the log now starts at %d", len(removed), log.min_offset)
        return removed

    def _clean_queues(self) -> list[str]:
        removed: list[str] = []
        min_offset = self._log.min_offset
        if self._cleaned_for != min_offset:
            self._cleaned_for = min_offset
            self._left = iter(list(self._queues.table.values()))
        for _ in range(MAX_QUEUES_PER_PASS):
            queue = next(self._left, None)
            if queue is None:
                break
            if queue.first_number + self._queues.file_entries < queue.max_number and (
                self._queues.table.get((queue.topic, queue.queue_id)) is queue
            ):
                removed += self._queues.remove_files_below(queue, min_offset)
        return removed
