"""Facade of the store. All methods run on one thread, except where a task states otherwise."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from mmap import mmap
from typing import TYPE_CHECKING

from delaymq.message.levels import DelayLevels
from delaymq.message.record import (
    BLANK_BYTES,
    BODY_CRC,
    Record,
    decode_record,
)
from delaymq.store import layout, opening
from delaymq.store.appending import LogAppender
from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import ConsumeQueues
from delaymq.store.deletions import Deletions
from delaymq.store.disk.config_files import ConfigFiles
from delaymq.store.disk.files import Files, is_full, is_shortage
from delaymq.store.disk.store_lock import StoreLock
from delaymq.store.dispatch import Dispatcher
from delaymq.store.errors import (
    StoreFailedError,
    StoreFullError,
)
from delaymq.store.index.key_index import KeyIndex
from delaymq.store.model import (
    DiskState,
    DispatchObserver,
    LiveObserver,
    RecoveryReport,
    StoreTask,
)
from delaymq.store.options import StoreOptions
from delaymq.store.replica.receiving import LogReceiver
from delaymq.store.retention import ExpiredLog, Pins, Retention
from delaymq.store.snapshot.snapshotter import WITHOUT_REPLICAS, Snapshotter
from delaymq.store.time_search import offset_by_time, store_time_of
from delaymq.store.untrusted_offsets import ReferencedHead, referenced_head

if TYPE_CHECKING:
    from delaymq.store.read_only import ReadOnlyFiles

_logger = logging.getLogger(__name__)
_body_crc_of = BODY_CRC.unpack_from


class MessageStore(LogAppender):
    """An open store, created with `open`."""

    def __init__(
        self,
        path: str,
        state: layout.StoreState,
        files: Files,
        options: StoreOptions,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex | None,
        dispatcher: Dispatcher,
        observers: Sequence[DispatchObserver],
        lock: StoreLock,
        report: RecoveryReport,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(options, log, queues, dispatcher, Retention(files, path, options, log, queues, index), now_ms)
        self.path = path
        self._state = state
        self.recovery = report
        self._files = files
        self._index = index
        self._lock = lock
        self.pins: Pins = self._retention.pins
        self.config_files = ConfigFiles(files, f"{path}/config", path, report.corrections)
        self.own_files = ConfigFiles(files, f"{path}/delaymq", path, report.corrections)
        snapshot_end = log.end_offset if report.snapshot_used else 0
        self._snapshots = Snapshotter(files, path, log, queues, index, observers, snapshot_end)
        self._read_only: ReadOnlyFiles | None = None
        self._receiver = LogReceiver(log, queues, dispatcher, index)
        self._replicated = WITHOUT_REPLICAS
        self.deletions = Deletions(self.own_files, log, queues, dispatcher, self._snapshots)

    @classmethod
    def open_read_only(
        cls,
        path: str | os.PathLike[str],
        options: StoreOptions,
        *,
        now_ms: Callable[[], int],
        levels: DelayLevels,
        observers: Sequence[DispatchObserver] = (),
    ) -> MessageStore:
        """Open a store or a backup as `open` would, but without changing its folder and without appending."""
        from delaymq.store.read_only import read_only_files  # no other start needs it

        files, options = read_only_files(os.fspath(path).rstrip("/"), options)
        try:
            store = opening.open_store(cls, os.fspath(path), options, now_ms, levels, files, observers)
        except BaseException:
            files.remove_scratch()
            raise
        store._read_only = files
        store.is_closed = store.is_read_only = True
        store.is_writable = False
        return store

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        options: StoreOptions,
        *,
        now_ms: Callable[[], int],
        levels: DelayLevels,
        files: Files | None = None,
        observers: Sequence[DispatchObserver] = (),
        end_at_damage: bool = False,
    ) -> MessageStore:
        """Lock and recover the store. Damage is repaired and reported. StoreLockedError, NotAStoreError.

        `end_at_damage`: end the log before the first damage in the part that is replayed, because another broker has
        the same bytes, instead of changing bytes.
        """
        return opening.open_store(
            cls, os.fspath(path), options, now_ms, levels, files or Files(), observers, end_at_damage=end_at_damage
        )

    def hand_on(self, observers: Sequence[LiveObserver]) -> None:
        """Replace the observers that followed the recovery with `observers`, which receive all records from now on.

        Names and order must be the same: each observer continues from the state of its predecessor. ValueError.
        """
        names = [observer.name for observer in self._snapshots.observers]
        if names != [observer.name for observer in observers]:
            raise ValueError(f"the observers of this store are {names}, in this order")
        self._dispatcher.observed_by(observers)
        self._snapshots.observers = observers

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def levels(self) -> DelayLevels:
        """Delay levels from which records that another broker wrote to the schedule topic get their due times."""
        return self._dispatcher.levels

    @levels.setter
    def levels(self, levels: DelayLevels) -> None:
        self._dispatcher.levels = levels

    @property
    def store_id(self) -> str:
        """Id from state.json: generated with the store and unchanged by restarts."""
        return self._state.store_id

    @property
    def format_version(self) -> int:
        """Version of the format in state.json: lowest one that describes all records of the store."""
        return self._state.format_version

    def raise_format_version(self, version: int) -> None:
        """Durably require a program that knows this version; call it before the first record that needs it.

        StoreFullError, StoreFailedError: state.json could not be written, and nothing has changed.
        """
        if self._state.minimum_reader >= version:
            return
        if self.is_closed or self._log.failure is not None:
            self.refuse()
        state = layout.raised(self._state, version)
        try:
            layout.write_state(self._files, self.path, state)
        except OSError as error:
            if is_full(error) or is_shortage(error):
                raise StoreFullError(
                    f"state.json cannot be written ({error}), which the first timed message and the first change of a"
                    " pending one require: free space or file descriptors"
                ) from error
            raise StoreFailedError(f"state.json cannot be written ({error}): check the disk") from error
        self._state = state
        _logger.info("the store now has format version %d: older programs cannot open it", state.format_version)

    @property
    def min_offset(self) -> int:
        """Physical offset of the oldest byte of the log."""
        return self._log.min_offset

    @property
    def end_offset(self) -> int:
        """Physical offset of the next record."""
        return self._log.end_offset

    @property
    def flushed_offset(self) -> int:
        """Physical offset up to which the log is durable."""
        return self._log.flushed_offset

    @property
    def replicated_offset(self) -> int:
        """Physical offset up to which all required replicas have the log; its end without replication."""
        return min(self._replicated, self._log.end_offset)

    def set_replicated(self, offset: int | None) -> None:
        """Set the offset up to which all required replicas have the log; None: there are none."""
        self._replicated = self._snapshots.replicated = WITHOUT_REPLICAS if offset is None else offset

    @property
    def is_replicated(self) -> bool:
        """Whether records are confirmed only when replicas have them."""
        return self._replicated != WITHOUT_REPLICAS

    @property
    def confirmed_offset(self) -> int:
        """Physical offset up to which readers see records: appended or, with `sync_flush`, flushed; and replicated."""
        offset = self._log.flushed_offset if self.options.sync_flush else self._log.end_offset
        return offset if offset <= self._replicated else self._replicated

    @property
    def durable_offset(self) -> int:
        """Physical offset up to which the log is flushed and replicated: neither a loss of power nor another master
        removes it."""
        offset = self._log.flushed_offset
        return offset if offset <= self._replicated else self._replicated

    @property
    def largest_record_bytes(self) -> int:
        """Size of the largest record that fits a segment, regardless of the configured limit."""
        return self._log.file_bytes - BLANK_BYTES

    @property
    def deleted_topics(self) -> Mapping[str, int]:
        """Topic → log end at its deletion, for topics of which the log still has older records."""
        return self.deletions.offsets

    @property
    def last_offset(self) -> int:
        """Physical offset of the newest record; -1 without one. An append that fails before it stores its record does
        not change it."""
        return self._log.last_offset

    @property
    def last_store_timestamp_ms(self) -> int:
        """Store time of the newest record; 0 without one."""
        return self._log.last_store_timestamp_ms

    def set_options(self, options: StoreOptions) -> None:
        """Apply changed limits, intervals and retention; file sizes and kinds of files do not change."""
        opened = self.options
        self.options = self._retention.options = replace(
            options,
            commit_log_file_bytes=opened.commit_log_file_bytes,
            consume_queue_file_bytes=opened.consume_queue_file_bytes,
            index_slots=opened.index_slots,
            index_entries=opened.index_entries,
            index_enable=opened.index_enable,
            sync_flush=opened.sync_flush,
        )

    # -- queues ---------------------------------------------------------------------------------------------------

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next record of this queue."""
        queue = self._queues.table.get((topic, queue_id))
        return queue.max_number if queue is not None else 0

    def stored_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first entry whose record exists and the number of the next one; (0, 0) if never written."""
        queue = self._queues.table.get((topic, queue_id))
        return self._queues.bounds(queue, self._log.min_offset) if queue is not None else (0, 0)

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return `stored_bounds` as consumers see them: records that replicas do not have yet are omitted."""
        queue = self._queues.table.get((topic, queue_id))
        if queue is None:
            return 0, 0
        bounds = self._queues.bounds(queue, self._log.min_offset)
        if self._replicated >= self._log.end_offset:
            return bounds
        high = self._queues.end_before(queue, self.confirmed_offset)
        return min(bounds[0], high), high

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether the queue has ever been written."""
        return (topic, queue_id) in self._queues.table

    def queues(self) -> Iterator[tuple[str, int]]:
        """Iterate over topic and queue id of each queue."""
        return iter(list(self._queues.table))

    def read_entries(self, topic: str, queue_id: int, offset: int, count: int) -> bytes:
        """Return up to `count` raw entries of 20 bytes from `offset`, blank ones too; call again if there are fewer."""
        queue = self._queues.table.get((topic, queue_id))
        return self._queues.read(queue, offset, count) if queue is not None else b""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the number of the entry stored at or nearest to `timestamp_ms`; 0 for a queue never written."""
        queue = self._queues.table.get((topic, queue_id))
        if queue is None:
            return 0
        found = offset_by_time(self._log, self._queues, queue, timestamp_ms)
        if self._replicated < self._log.end_offset:
            low, high = self.queue_bounds(topic, queue_id)
            found = min(found, max(high - 1, low))
        return found

    def store_time_of(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time in ms of an entry's record; None if it is missing."""
        queue = self._queues.table.get((topic, queue_id))
        return store_time_of(self._log, self._queues, queue, queue_offset) if queue is not None else None

    def delete_topic(self, topic: str) -> None:
        """Delete the topic's queues; a later topic with that name counts from 0, even after a recovery."""
        self.deletions.delete(topic)

    def continue_queue(self, topic: str, queue_id: int, number: int) -> None:
        """Let a queue without entries continue at a number: its records are older than the log. IllegalMessageError."""
        self._queues.continue_at(self._queues.get_or_make(topic, queue_id), number)

    # -- records --------------------------------------------------------------------------------------------------

    def read_bytes(self, physical_offset: int, size: int) -> bytes:
        """Return raw bytes of the log; empty if any of them is missing."""
        return self._log.read_bytes(physical_offset, size) if physical_offset >= 0 else b""

    @property
    def open_segment(self) -> tuple[mmap, int]:
        """The segment to which records are appended, mapped, and its physical offset."""
        return self._log.mapping, self._log.segment_base

    def record_at(self, physical_offset: int) -> Record | None:
        """Return the record that starts at an offset; None if there is no valid one."""
        return self._log.record_at(physical_offset)

    def referenced_head(self, physical_offset: int) -> ReferencedHead | None:
        """Return the head of the record at an offset if its queue names it too; see `untrusted_offsets`."""
        return referenced_head(self._log, self._queues, physical_offset)

    def record_from(self, physical_offset: int, size: int) -> Record:
        """Return the record that a queue entry names. RecordError: the record no longer exists."""
        return decode_record(self._log.read_bytes(physical_offset, size), check_crc=False)

    def query_index(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return physical offsets of records that may have `key`, newest first."""
        return self._index.query(topic, key, max_count, begin_ms, end_ms) if self._index is not None else []

    def index_steps(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield all results of `query_index`; None marks points at which the caller may interrupt the search."""
        return self._index.steps(topic, key, begin_ms, end_ms) if self._index is not None else iter(())

    @property
    def index_files(self) -> int:
        """Number of files of the index of keys."""
        return len(self._index.files) if self._index is not None else 0

    @property
    def has_all_keys(self) -> bool:
        """Whether the index contains the keys of all records in the log."""
        return self._index is not None and self._index.is_complete

    @property
    def index_last_update(self) -> tuple[int, int]:
        """Store time and physical offset of the newest indexed record."""
        return self._index.last_update() if self._index is not None else (0, 0)

    # -- the log of another broker --------------------------------------------------------------------------------

    @property
    def received_offset(self) -> int:
        """Physical offset of the next byte that `append_raw` accepts: the log's end, or inside the record there."""
        return self._receiver.offset

    def append_raw(self, offset: int, data: bytes) -> None:
        """Append bytes of another broker's log, cut anywhere, and dispatch all complete records.

        Errors as in `LogReceiver.receive`; also StoreClosedError, StoreReadOnlyError, StoreFailedError.
        """
        if self.is_closed or self._log.failure is not None:
            self.refuse()
        self._receiver.receive(offset, data)

    def follow(self, *, follows: bool) -> None:
        """Set whether the log is another broker's. Then it accepts only raw bytes; otherwise, the store's own records.

        The beginning of a record that has been received is dropped.
        """
        self._receiver.forget()
        self.is_following = follows
        self.is_writable = not (follows or self.refusal or self.is_closed)

    def forget_received(self) -> None:
        """Drop the incomplete record behind the log's end, for example because its sender has disconnected."""
        self._receiver.forget()

    # -- work in the background -----------------------------------------------------------------------------------

    def flush_task(self) -> StoreTask | None:
        """Return a task that flushes all appended records; None if there are none or a flush is running."""
        return self._log.flush_task()

    def allocation_task(self) -> StoreTask | None:
        """Return a task that creates the next segment; None if it exists or is in creation, or the disk is too full."""
        if self._retention.disk.writes_refused or self._retention.lacks_reserve(besides_bytes=self._log.file_bytes):
            return None
        if self.is_following and not self._log.segments:
            return None  # the first segment is that with which the other broker's log begins
        return self._log.allocation_task()

    def write_behind(self, budget_files: int = 256) -> bool:
        """Write new queue and index entries to their files; return whether more are left."""
        more = self._queues.write_behind(budget_files)
        if self._index is not None:
            self._index.write_behind()
        return more

    def snapshot_task(self, force: bool = False) -> StoreTask | None:
        """Return a task that writes a snapshot to shorten the next recovery; None if none is due or one is running."""
        return self._snapshots.task(self.options.snapshot_interval_bytes, force=force)

    # -- the disk -------------------------------------------------------------------------------------------------

    def expired_log(self, now_ms: int) -> ExpiredLog:
        """Return the part of the log that is to be deleted next."""
        return self._retention.expired_log(now_ms)

    def reserve(self, reserve_bytes: Callable[[], int]) -> None:
        """Keep the number of bytes that `reserve_bytes` returns free for records of `Reserve.CARRYING`."""
        self._retention.reserve_bytes = reserve_bytes

    def clean(self, now_ms: int, *, at_any_hour: bool = False) -> list[str]:
        """Run one deletion cycle, see Retention.clean; return the paths of deleted files."""
        removed = self._retention.clean(now_ms, at_any_hour=at_any_hour, index_in_use=self._snapshots.is_running)
        if removed and self._dispatcher.deleted_topics:
            self.deletions.save()
        return removed

    @property
    def failure(self) -> StoreFailedError | None:
        """Reason why the store accepts nothing more after a disk failure; None before."""
        return self._log.failure

    def fail(self, reason: str) -> None:
        """Stop accepting records because a part of the store is damaged that only a start repairs."""
        if self._log.failure is None:
            self._log.failure = StoreFailedError(reason)

    def disk_state(self) -> DiskState:
        """Disk usage measured by the last retention check."""
        return self._retention.disk

    def close(self) -> None:
        """Write everything to disk and mark a clean stop. After a disk failure, only release files and the lock."""
        if self.is_closed:
            self.abandon()
            return
        self.is_closed, self.is_writable, clean = True, False, False
        try:
            self._receiver.forget()
            self._snapshots.abandon()
            if self._log.failure is None:
                task = self._snapshots.full_task(write_slots=True)
                if task is not None:
                    task.run()
                    clean = task.finish() is None
            if clean:
                self._files.unlink(f"{self.path}/abort")
                self._files.sync_folder(self.path)
            else:
                _logger.error("the store could not be completely written: the next start recovers it")
        finally:
            self._release()

    def abandon(self) -> None:
        """Release files and lock without writing, which leaves the same state as a kill."""
        read_only, self._read_only = self._read_only, None
        if read_only is not None or not self.is_closed:
            self.is_closed, self.is_writable = True, False
            self._release()
        if read_only is not None:
            read_only.remove_scratch()

    def _release(self) -> None:
        self._log.close()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self._lock.release()
