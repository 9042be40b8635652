"""Recovery: find the log's end, bring queues, index and observers up to date (docs/formats/store.md).

There are three cases: a valid snapshot (only the log after it is replayed), a clean stop without one (queues and index
are kept, observers receive the whole log), or neither (queues and index are rebuilt from the log).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import ConsumeQueues
from delaymq.store.disk.aside import AsideFolder
from delaymq.store.disk.files import Files, is_full
from delaymq.store.dispatch import Dispatcher
from delaymq.store.index.key_index import KeyIndex
from delaymq.store.model import Correction, Dispatched, DispatchObserver, RecoveryReport
from delaymq.store.plain_runs import Stretch
from delaymq.store.recovery.log_scan import ScanPosition, decoding, scan_segment
from delaymq.store.recovery.log_survey import LogSurvey
from delaymq.store.recovery.plain_scan import MAX_MS, scan_for_replay, walk
from delaymq.store.recovery.queue_discovery import FoundQueues
from delaymq.store.recovery.queue_runs import Key
from delaymq.store.recovery.run_selection import Start
from delaymq.store.snapshot.snapshot import NAME, Snapshot, decode_snapshot

_logger = logging.getLogger(__name__)
_WRITE_INTERVAL_RECORDS = 50_000
"""Interval at which replayed queue entries are written, to limit memory."""


@dataclass(kw_only=True)
class Recovery:
    """One recovery; `run` can be called once."""

    files: Files
    store_path: str
    log: CommitLog
    queues: ConsumeQueues
    index: KeyIndex | None
    observers: Sequence[DispatchObserver]
    dispatcher: Dispatcher
    check_crc: bool
    report: RecoveryReport
    aside: AsideFolder
    now_ms: Callable[[], int]
    limit: int | None = None
    """Physical offset at which the log has to end; what follows is removed."""
    end_at_damage: bool = False
    """Whether the log ends before the first damage instead of being repaired."""

    def __post_init__(self) -> None:
        self._found = FoundQueues(
            files=self.files,
            store_path=self.store_path,
            log=self.log,
            queues=self.queues,
            aside=self.aside,
            corrections=self.report.corrections,
        )

    def run(self) -> None:
        """Prepare log, queues, index and observers for the next record."""
        index_sound = self.index is None or self.index.load()
        snapshot = self._load_snapshot() if index_sound else None
        if snapshot is not None and not (self._restore_observers(snapshot) and self._resume(snapshot)):
            snapshot = None
        kept: dict[Key, int] | None = None
        if snapshot is not None:
            self.report.snapshot_used, self.report.snapshot_end = True, snapshot.log_end
            last_ms = snapshot.last_store_timestamp_ms
            start = ScanPosition(
                snapshot.log_end, snapshot.last_offset, snapshot.last_crc, last_ms, 0, last_ms, last_ms
            )
        else:
            start = ScanPosition(self.log.min_offset)
            # The part that is to be removed may have replaced entries of the part that is kept.
            as_they_are = self.report.clean and self.limit is None and not self._found.entries_cut
            if not (as_they_are and self._found.take_as_they_are()):
                kept = self._found.measure()
        flushed = start.offset
        survey = LogSurvey(
            files=self.files,
            log=self.log,
            queues=self.queues,
            aside=self.aside,
            corrections=self.report.corrections,
            check_crc=self.check_crc,
            now_ms=self.now_ms,
            limit=self.limit,
            end_at_damage=self.end_at_damage,
        )
        end = replace(start)
        self._without_entry = survey.run(end, self.dispatcher.deleted_topics, lambda key: self._start_of(key, kept))
        if kept is not None:
            self._found.clear(kept)
            if self.index is not None and self.index.remove_all():
                self._correct("index-rebuilt", "index", 0, "the key index is rebuilt from the log")
        elif snapshot is None:
            self._take_index_as_it_is(sound=index_sound)
        if snapshot is None:
            for observer in self.observers:
                observer.restore(None)
        self._replay(start, end)
        self._found.cut_beyond(end.offset)
        self._rebuild_index_beyond(end.offset)
        if any(correction.what in ("log-hole", "segment-missing") for correction in self.report.corrections):
            # RocketMQ's broker does not create blank entries for gaps: it must find them if it opens the store next.
            self._write()
        self._start_log(end, flushed)

    def _correct(self, what: str, file: str, offset: int, detail: str) -> None:
        self.report.corrections.append(Correction(what, file, offset, detail))

    # -- start of the replay --------------------------------------------------------------------------------------

    def _load_snapshot(self) -> Snapshot | None:
        """Return the snapshot if it is still valid."""
        data = self.files.read(f"{self.store_path}/delaymq/{NAME}")
        if data is None:
            return None
        try:
            snapshot = decode_snapshot(data)
        except ValueError as error:
            self._correct("snapshot-damaged", f"delaymq/{NAME}", 0, f"not used: {error}")
            self.aside.keep_file(f"{self.store_path}/delaymq/{NAME}")
            return None
        problem = self._problem_of(snapshot)
        if problem:
            self._correct("snapshot-stale", f"delaymq/{NAME}", 0, f"not used: {problem}")
            if self.limit is not None:
                # With the same bytes received again, it could look valid, but its files would no longer be.
                self.files.unlink(f"{self.store_path}/delaymq/{NAME}")
                self.files.sync_folder(f"{self.store_path}/delaymq")
            return None
        return snapshot

    def _problem_of(self, snapshot: Snapshot) -> str | None:
        log = self.log
        if self.limit is not None and snapshot.log_end > self.limit:
            return f"it describes the log up to {snapshot.log_end}, which is to be cut at {self.limit}"
        if snapshot.index_enabled != (self.index is not None):
            return "the key index was enabled or disabled"
        if set(snapshot.observers) != {observer.name for observer in self.observers}:
            stated = ", ".join(sorted(snapshot.observers))
            return f"its components are not those of this broker ({stated[:200]})"
        last_possible = log.segments[-1].base + log.file_bytes if log.segments else 0
        if not log.min_offset <= snapshot.log_end <= last_possible:
            return f"the log does not continue from it ({log.min_offset}…{last_possible}, not {snapshot.log_end})"
        if snapshot.last_offset >= log.min_offset:
            # Nothing is mapped yet: the log reads this record from its file, because it precedes the active segment.
            log.end_offset = snapshot.log_end
            log.segment_base = last_possible
            record = log.record_at(snapshot.last_offset)
            if (
                record is None
                or record.body_crc != snapshot.last_crc
                or record.store_timestamp_ms != snapshot.last_store_timestamp_ms
            ):
                return f"the record at {snapshot.last_offset} is not the one that it names"
        elif snapshot.log_end > log.min_offset:
            return "its last record no longer exists"
        return None

    def _restore_observers(self, snapshot: Snapshot) -> bool:
        """Restore the observers' states; return False if one of them is invalid."""
        for observer in self.observers:
            try:
                observer.restore(snapshot.observers.get(observer.name))
            except ValueError as error:
                self._correct("snapshot-stale", f"delaymq/{NAME}", 0, f"not used: {error}")
                return False
        return True

    def _resume(self, snapshot: Snapshot) -> bool:
        """Accept queues and index as in the snapshot; return False if they differ from it."""
        for topic, queue_ends in snapshot.queue_ends.items():
            for number, end in queue_ends.items():
                if not self._found.resume(topic, int(number), end) or self._is_replaced(topic, int(number), snapshot):
                    detail = f"not used: queue {topic}/{number} does not reach its stated end {end}"
                    self._correct("snapshot-stale", f"delaymq/{NAME}", 0, detail)
                    self.queues.table.clear()
                    return False
        for topic, queue_id in self.queues.folders():
            if (topic, queue_id) not in self.queues.table:
                self.queues.cut(self._found.unsynced(topic, queue_id), 0)
        for queue in list(self.queues.table.values()):
            self.queues.cut(queue, queue.max_number)
        if self.index is None or self.index.resume_at(snapshot.index):
            return True
        self._correct("snapshot-stale", f"delaymq/{NAME}", 0, "not used: the key index differs from it")
        self.index.remove_all()
        self.queues.table.clear()
        return False

    def _is_replaced(self, topic: str, queue_id: int, snapshot: Snapshot) -> bool:
        """Whether a queue restarted from 0 after the snapshot, in the part of the log that is to be removed."""
        queue = self.queues.table[topic, queue_id]
        return self.limit is not None and self.queues.last_physical_offset(queue) >= snapshot.log_end

    # -- without a snapshot ---------------------------------------------------------------------------------------

    def _take_index_as_it_is(self, *, sound: bool) -> None:
        if self.index is None:
            return
        if sound:
            self.index.resume()
        else:
            self.index.remove_all()
            self._correct("index-rebuilt", "index", 0, "a file has another size: rebuilt from the log")

    def _start_of(self, key: Key, kept: dict[Key, int] | None) -> Start:
        """Return the start of a queue's offsets in the survey."""
        if self.report.snapshot_used:
            queue = self.queues.table.get((key[0].decode("utf-8", "surrogateescape"), key[1]))
            return Start(queue.max_number if queue is not None else 0)
        if self.log.min_offset == 0:
            return Start(0)
        known = kept.get(key, 0) if kept is not None else 0
        return Start(known, exact=False) if known else Start(None)

    # -- replay ---------------------------------------------------------------------------------------------------

    def _replay(self, at: ScanPosition, end: ScanPosition) -> None:
        """Dispatch everything from `at` to `end`, as corrected by the survey."""
        start = at.offset
        self._end = end.offset
        index = self.index
        latest_ms = (lambda: MAX_MS) if index is None else (lambda: index.latest_ms)
        # A record without queue entry, which only damage causes, is not plain.
        plain = None if self._without_entry else scan_for_replay(self._dispatch_plain, latest_ms, self.observers)
        take = decoding(self.dispatcher.levels, self._dispatch)
        while at.offset < end.offset and (segment := self.log.segment_of(at.offset)) is not None:
            data = self.files.map(segment.descriptor, self.log.file_bytes)
            try:
                if not walk(data, segment.base, at, take, plain, check_crc=False):
                    break
            finally:
                data.close()
        self.report.replayed_records = at.records
        self.report.replayed_bytes = at.offset - start

    def _dispatch(self, record: Dispatched) -> None:
        if record.physical_offset in self._without_entry:
            if self.index is not None:
                self.index.put(record)
            return
        if record.physical_offset <= self._found.known_until.get((record.topic, record.queue_id), -1) < self._end:
            self.dispatcher.observe(record)
        else:
            self.dispatcher.dispatch(record)
        self._write_from(record.physical_offset)

    def _dispatch_plain(self, stretches: list[Stretch], keys: bytes) -> None:
        for stretch in stretches:
            known_until = self._found.known_until.get((stretch.topic, stretch.queue_id), -1)
            self.dispatcher.put_stretch(stretch, known_until if known_until < self._end else -1)
        if self.index is not None:
            self.index.put_keys(keys)
        self._write_from(max(stretch.last_at for stretch in stretches))

    _without_entry: set[int] = field(default_factory=set)
    """Physical offsets of records without queue entry."""
    _next_write = 0
    _end = 0

    def _write_from(self, offset: int) -> None:
        if offset >= self._next_write:
            self._next_write = offset + (_WRITE_INTERVAL_RECORDS << 8)
            self._write()

    def _write(self) -> None:
        try:
            while self.queues.write_behind(1_000):
                pass
            if self.index is not None:
                self.index.write_behind()
        except OSError as error:
            if not is_full(error):
                raise

    def _rebuild_index_beyond(self, log_end: int) -> None:
        """Rebuild the index if it names offsets beyond the log's end, where new records will be written."""
        index = self.index
        if index is None or not any(file.count > 1 and file.end_offset >= log_end for file in index.files):
            return
        index.remove_all()
        self._correct("index-rebuilt", "index", 0, "it reaches beyond the log's end: rebuilt from the log")
        at = ScanPosition(self.log.min_offset)
        while at.offset < log_end and (segment := self.log.segment_of(at.offset)) is not None:
            data = self.files.map(segment.descriptor, self.log.file_bytes)
            try:
                if not scan_segment(data, segment.base, at, self.dispatcher.levels, index.put, check_crc=False):
                    break
            finally:
                data.close()
            self._write()

    def _start_log(self, end: ScanPosition, flushed: int) -> None:
        log = self.log
        log.last_offset = end.last_offset
        log.last_crc = end.last_crc
        log.last_store_timestamp_ms = end.last_store_timestamp_ms
        log.start_at(end.offset)
        # The page cache of a killed process is not durable yet: the first flush writes it.
        log.flushed_offset = min(flushed, end.offset)
