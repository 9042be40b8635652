"""Opening a store: find the log's end, bring queues, index and observers level with it (docs/formats/store.md).

The start is one of three: a valid snapshot (replay what follows it), a clean stop without one (queues and index as
they stand, the whole log for the observers), or neither (queues and index anew from the log).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from delaymq.store.aside import Aside
from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import ENTRY_BYTES, MAX_EXT_ADDRESS, ConsumeQueue, ConsumeQueues
from delaymq.store.dispatch import Dispatcher
from delaymq.store.files import Files, is_full
from delaymq.store.key_index import KeyIndex
from delaymq.store.log_survey import LogSurvey
from delaymq.store.model import Correction, Dispatched, DispatchObserver, RecoveryReport
from delaymq.store.run_choice import Start
from delaymq.store.scan import ScanPosition, scan_segment
from delaymq.store.snapshot import NAME, Snapshot, decode_snapshot
from delaymq.store.survey import Key

_log = logging.getLogger(__name__)
# Replayed queue entries are written that often: they would otherwise gather in memory.
_WRITE_INTERVAL_RECORDS = 50_000
_NOT_CUT = 1 << 62


@dataclass(kw_only=True)
class Recovery:
    """One recovery; `run` once."""

    files: Files
    store_path: str
    log: CommitLog
    queues: ConsumeQueues
    index: KeyIndex | None
    observers: Sequence[DispatchObserver]
    dispatcher: Dispatcher
    check_crc: bool
    report: RecoveryReport
    aside: Aside
    now_ms: Callable[[], int]

    def run(self) -> None:
        """Leave log, queues, index and observers ready for the next record."""
        index_sound = self.index is None or self.index.load()
        snapshot = self._load_snapshot() if index_sound else None
        if snapshot is not None and not (self._restore_observers(snapshot) and self._resume(snapshot)):
            snapshot = None
        kept: dict[Key, int] | None = None
        if snapshot is not None:
            self.report.snapshot_used = True
            last_ms = snapshot.last_store_timestamp_ms
            start = ScanPosition(
                snapshot.log_end, snapshot.last_offset, snapshot.last_crc, last_ms, 0, last_ms, last_ms
            )
        else:
            start = ScanPosition(self.log.min_offset)
            if not (self.report.clean and not self._entries_cut and self._take_queues_as_they_are()):
                kept = self._measure_queues()
        flushed = start.offset
        survey = LogSurvey(
            files=self.files,
            log=self.log,
            queues=self.queues,
            aside=self.aside,
            corrections=self.report.corrections,
            check_crc=self.check_crc,
            now_ms=self.now_ms,
        )
        end = replace(start)
        self._without_entry = survey.run(end, self.dispatcher.deleted_topics, lambda key: self._start_of(key, kept))
        if kept is not None:
            self._clear_queues(kept)
            if self.index is not None and self.index.remove_all():
                self._correct("index-rebuilt", "index", 0, "the key index is built anew from the log")
        elif snapshot is None:
            self._take_index_as_it_is(sound=index_sound)
        if snapshot is None:
            for observer in self.observers:
                observer.restore(None)
        self._replay(start, end)
        self._cut_queues_beyond(end.offset)
        self._rebuild_index_beyond(end.offset)
        if any(correction.what in ("log-hole", "segment-missing") for correction in self.report.corrections):
            # The real broker does not make blank entries for a hole: it must find them, should it open the store next.
            self._write()
        self._start_log(end, flushed)

    def _correct(self, what: str, file: str, offset: int, detail: str) -> None:
        self.report.corrections.append(Correction(what, file, offset, detail))

    # -- where to begin -------------------------------------------------------------------------------------------

    def _load_snapshot(self) -> Snapshot | None:
        """The snapshot if it still tells the truth."""
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
            return None
        return snapshot

    def _problem_of(self, snapshot: Snapshot) -> str | None:
        log = self.log
        if snapshot.index_enabled != (self.index is not None):
            return "the key index was switched on or off"
        if set(snapshot.observers) != {observer.name for observer in self.observers}:
            return "other parts of the broker kept their state in it"
        last_possible = log.segments[-1].base + log.file_bytes if log.segments else 0
        if not log.min_offset <= snapshot.log_end <= last_possible:
            return f"the log does not reach from it on ({log.min_offset}…{last_possible}, not {snapshot.log_end})"
        if snapshot.last_offset >= log.min_offset:
            # Nothing is mapped yet: with the active segment behind it, the log reads this record from its file.
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
            return "its last record is gone"
        return None

    def _restore_observers(self, snapshot: Snapshot) -> bool:
        """Give each observer its state; False when one does not know what it is given."""
        for observer in self.observers:
            try:
                observer.restore(snapshot.observers.get(observer.name))
            except ValueError as error:
                self._correct("snapshot-stale", f"delaymq/{NAME}", 0, f"not used: {error}")
                return False
        return True

    def _resume(self, snapshot: Snapshot) -> bool:
        """Take queues and index from the snapshot; False when they are not as it states."""
        for topic, queue_ends in snapshot.queue_ends.items():
            for number, end in queue_ends.items():
                if not self._resume_queue(topic, int(number), end):
                    detail = f"not used: queue {topic}/{number} does not reach its stated end {end}"
                    self._correct("snapshot-stale", f"delaymq/{NAME}", 0, detail)
                    self.queues.table.clear()
                    return False
        for topic, queue_id in self.queues.folders():
            if (topic, queue_id) not in self.queues.table:
                self.queues.cut(self._unsynced(topic, queue_id), 0)
        for queue in list(self.queues.table.values()):
            self.queues.cut(queue, queue.max_number)
        if self.index is None or self.index.resume_at(snapshot.index):
            return True
        self._correct("snapshot-stale", f"delaymq/{NAME}", 0, "not used: the key index is not as it states")
        self.index.remove_all()
        self.queues.table.clear()
        return False

    def _resume_queue(self, topic: str, queue_id: int, end: int) -> bool:
        queue = self.queues.get_or_make(topic, queue_id)
        starts = self._sound_starts(queue)
        if not starts:
            return end == 0
        if self._cut_at < end:
            self._entries_cut = True
            return False
        queue.first_number, queue.max_number = starts[0], end
        queue.min_known_for = -1
        if end <= starts[0]:
            return end == starts[0]
        entry = self.queues.entry(queue, end - 1)
        return entry is not None and entry[0] >= 0 and entry[1] > 0

    # -- without a snapshot ---------------------------------------------------------------------------------------

    _entries_cut = False
    """Whether the snapshot was given up for queue entries that are zeroes now."""
    _cut_at = _NOT_CUT
    """First entry that the queue last looked at lacks in a file that was cut: zeroes now, to be built anew."""

    def _sound_starts(self, queue: ConsumeQueue) -> list[int]:
        """Where the queue's files begin, of the last run without a gap; a file of another size is put right."""
        starts = self.queues.file_starts(queue)
        self._cut_at = _NOT_CUT
        for start in starts:
            path = self.queues.path_of(queue, start)
            facts = self.files.facts(path)
            if facts is not None and facts.file_bytes != self.queues.file_bytes:
                if facts.file_bytes < self.queues.file_bytes:
                    self._cut_at = min(self._cut_at, start + facts.file_bytes // ENTRY_BYTES)
                descriptor = self.files.open(path)
                try:
                    self.aside.cut(descriptor, path, facts.file_bytes, self.queues.file_bytes)
                finally:
                    self.files.close(descriptor)
                shown = path.removeprefix(self.store_path + "/")
                self._correct("queue-size", shown, facts.file_bytes, "the file had another size: set to full size")
        for position in range(len(starts) - 1, 0, -1):
            if starts[position] - starts[position - 1] != self.queues.file_entries:
                return starts[position:]
        return starts

    def _take_queues_as_they_are(self) -> bool:
        """Ends from the files of a clean stop; False when the entries cannot be trusted."""
        extended = bool(self.files.names_in(f"{self.store_path}/consumequeue_ext"))
        for topic, queue_id in self.queues.folders():
            queue = self.queues.get_or_make(topic, queue_id)
            starts = self._sound_starts(queue)
            if not starts:
                continue
            queue.first_number = starts[0]
            queue.max_number = self._end_of_entries(queue, starts[-1])
            queue.min_known_for = -1
            if self._cut_at < queue.max_number:
                return False
            self._known_until[topic, queue_id] = self.queues.last_physical_offset(queue)
            last = self.queues.entry(queue, queue.max_number - 1)
            extended = extended or (last is not None and last[2] <= MAX_EXT_ADDRESS)
        if extended:
            detail = "tags codes are addresses of an extension: queues are built anew from the log"
            self._correct("queue-extension", "consumequeue_ext", 0, detail)
        return not extended

    def _end_of_entries(self, queue: ConsumeQueue, last_start: int) -> int:
        """The first invalid entry of the last file, found by halving: a clean stop leaves no holes."""
        low, high = last_start, last_start + self.queues.file_entries
        queue.max_number = high
        while low < high:
            middle = (low + high) // 2
            entry = self.queues.entry(queue, middle)
            if entry is not None and entry[0] >= 0 and entry[1] > 0:
                low = middle + 1
            else:
                high = middle
        return low

    def _take_index_as_it_is(self, *, sound: bool) -> None:
        if self.index is None:
            return
        if sound:
            self.index.resume()
        else:
            self.index.remove_all()
            self._correct("index-rebuilt", "index", 0, "a file has another size: built anew from the log")

    def _measure_queues(self) -> dict[Key, int]:
        """How many entries of each queue stay: those whose log is gone, which cannot be built again."""
        self.queues.table.clear()
        self._known_until.clear()
        kept: dict[Key, int] = {}
        for topic, queue_id in self.queues.folders():
            queue = self._unsynced(topic, queue_id)
            starts = self._sound_starts(queue)
            end = 0
            if starts:
                queue.first_number = starts[0]
                queue.max_number = starts[-1] + self.queues.file_entries
                end = self._entries_below(queue, self.log.min_offset) if self.log.min_offset else 0
            kept[topic.encode(), queue_id] = end
        return kept

    def _clear_queues(self, kept: dict[Key, int]) -> None:
        """Keep only what was measured, so that numbers go on and do not begin anew."""
        rebuilt = 0
        for queue in self.queues.table.values():
            rebuilt += self.queues.cut(queue, kept[queue.topic.encode(), queue.queue_id])
        if rebuilt:
            self._correct("queues-rebuilt", "consumequeue", 0, f"{rebuilt} queues are built anew from the log")

    def _unsynced(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue of which a killed process may have synced nothing: neither its folders' names nor its files."""
        queue = self.queues.get_or_make(topic, queue_id)
        topic_folder = f"{self.queues.folder}/{topic}"
        self.queues.unsynced_folders |= {self.queues.folder, topic_folder, f"{topic_folder}/{queue_id}"}
        self.queues.unsynced_files |= {self.queues.path_of(queue, start) for start in self.queues.file_starts(queue)}
        return queue

    def _entries_below(self, queue: ConsumeQueue, log_min_offset: int) -> int:
        """End of the entries from the queue's beginning on whose records lie below the log."""
        low, high = queue.first_number, queue.max_number
        while low < high:
            middle = (low + high) // 2
            entry = self.queues.entry(queue, middle)
            if entry is not None and entry[1] > 0 and 0 <= entry[0] < log_min_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _start_of(self, key: Key, kept: dict[Key, int] | None) -> Start:
        """Where the numbers of a queue begin in the survey."""
        if self.report.snapshot_used:
            queue = self.queues.table.get((key[0].decode("utf-8", "surrogateescape"), key[1]))
            return Start(queue.max_number if queue is not None else 0)
        if self.log.min_offset == 0:
            return Start(0)
        known = kept.get(key, 0) if kept is not None else 0
        return Start(known, exact=False) if known else Start(None)

    # -- replay ---------------------------------------------------------------------------------------------------

    def _replay(self, at: ScanPosition, end: ScanPosition) -> None:
        """Dispatch everything from `at` to `end`, which the survey has put right."""
        start = at.offset
        self._end = end.offset
        while at.offset < end.offset and (segment := self.log.segment_of(at.offset)) is not None:
            data = self.files.map(segment.descriptor, self.log.file_bytes)
            try:
                if not scan_segment(data, segment.base, at, self.dispatcher.levels, self._dispatch, check_crc=False):
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
        if record.physical_offset <= self._known_until.get((record.topic, record.queue_id), -1) < self._end:
            self.dispatcher.observe(record)
        else:
            self.dispatcher.dispatch(record)
        if record.physical_offset >= self._next_write:
            self._next_write = record.physical_offset + (_WRITE_INTERVAL_RECORDS << 8)
            self._write()

    _without_entry: set[int] = field(default_factory=set)
    """Physical offsets of records that are in no queue."""
    _next_write = 0
    _end = 0
    _known_until: dict[tuple[str, int], int] = field(default_factory=dict)
    """Physical offset of the last record that a queue taken as it is has: its older records have their entries."""

    def _write(self) -> None:
        try:
            while self.queues.write_behind(1_000):
                pass
            if self.index is not None:
                self.index.write_behind()
        except OSError as error:
            if not is_full(error):
                raise

    def _cut_queues_beyond(self, log_end: int) -> None:
        """Entries of records that the log does not hold."""
        for queue in self.queues.table.values():
            number = queue.max_number
            while number > queue.first_number:
                entry = self.queues.entry(queue, number - 1)
                if entry is None or entry[0] < log_end:
                    break
                number -= 1
            if number < queue.max_number:
                shown = f"consumequeue/{queue.topic}/{queue.queue_id}"
                detail = f"{queue.max_number - number} entries beyond the log's end: cut"
                self._correct("queue-beyond-log", shown, number * ENTRY_BYTES, detail)
                self.queues.cut(queue, number)

    def _rebuild_index_beyond(self, log_end: int) -> None:
        """Keys of records that the log does not hold would find what is written there next."""
        index = self.index
        if index is None or not any(file.count > 1 and file.end_offset >= log_end for file in index.files):
            return
        index.remove_all()
        self._correct("index-rebuilt", "index", 0, "it reaches beyond the log's end: built anew from the log")
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
        # The page cache of a killed process is not on disk yet: the first flush brings it there.
        log.flushed_offset = min(flushed, end.offset)
