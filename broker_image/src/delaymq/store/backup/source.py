"""Where a backup is made from: what it needs of a source, and a store's folder as one.

The order in which a source is looked at is the point: first what says how far somebody is (consumer offsets, delay
positions), then the log's end. So no position is ahead of the log that is copied.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from delaymq.store.backup.manifest import MAX_SEGMENTS, FileSizes, is_plain, is_small_file
from delaymq.store.disk.config_files import CONSUMER_OFFSETS, UNREADABLE_OFFSETS
from delaymq.store.disk.files import Files
from delaymq.store.errors import BackupError, NotAStoreError, SegmentGoneError, WrongFolderError
from delaymq.store.layout import read_state, sizes_found
from delaymq.store.options import StoreOptions
from delaymq.store.reader import INDEX_HEADER, QUEUE_ENTRY, LogEnd, StoreReader
from delaymq.store.segments import segment_name
from delaymq.store.snapshot.snapshot import NAME as SNAPSHOT
from delaymq.store.snapshot.snapshot import decode_snapshot
from delaymq.store.tools.verify import slot_bytes

SMALL_FILES: Final = (
    "config/topics.json",
    "config/subscriptionGroup.json",
    "config/consumerOffset.json",
    "config/delayOffset.json",
    "config/consumerFilter.json",
    "delaymq/deleted_topics.json",
    "delaymq/delivery.json",
)
"""What a restore needs beside the log. Queues, index and snapshot are built from the log."""


@dataclass(frozen=True, kw_only=True)
class SourceState:
    """What is to be copied."""

    store_id: str
    broker_name: str | None
    message_delay_level: str | None
    sizes: FileSizes
    small_files: Mapping[str, bytes]
    ended_queues: Sequence[tuple[str, int, int]]
    """Topic, queue id, next number of queues without a record in the log: their numbers must not begin anew."""
    start_offset: int
    end_offset: int


class BackupSource(Protocol):
    """A store that can be copied while it is written."""

    def state(self) -> SourceState:
        """What there is now. BackupError when the source cannot be read."""

    def read(self, base: int, position: int, count: int) -> bytes:
        """Up to `count` bytes at `position` of the segment at `base`; at least one. SegmentGoneError, BackupError."""

    def pin(self, oldest: int) -> None:
        """Called all the while, so that nothing from the physical offset `oldest` on is deleted meanwhile."""

    def close(self) -> None:
        """The copy is done, or given up."""


class FolderSource:
    """A store's folder, at rest or with a broker on it, which is not asked: a deleted segment shows when it is read."""

    def __init__(self, path: str, files: Files | None = None) -> None:
        self._path = path.rstrip("/")
        self._files = files or Files()
        try:
            self._reader = StoreReader(self._path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise WrongFolderError(f"{path} is not a store: it has no folder commitlog") from error
        self._open: tuple[int, int] | None = None

    def state(self) -> SourceState:
        """See BackupSource."""
        try:
            state = read_state(self._files, self._path, [])
        except NotAStoreError as error:
            raise WrongFolderError(str(error)) from error
        small_files = {name: data for name in SMALL_FILES if (data := self._small_file(name)) is not None}
        for _ in range(100):
            try:
                return self._read_state(state.store_id if state is not None else "", small_files)
            except FileNotFoundError:
                continue  # retention was at work between two looks
        raise BackupError(f"{self._path} changes faster than it can be read")

    def _read_state(self, store_id: str, small_files: Mapping[str, bytes]) -> SourceState:
        segments = self._reader.segments()
        start = segments[0].base if segments else 0
        ended = [(*queue, end) for queue in self._reader.queues() if (end := self._end_if_ended(*queue, start))]
        return SourceState(
            store_id=store_id,
            broker_name=None,
            message_delay_level=None,
            sizes=self._sizes(),
            small_files=small_files,
            ended_queues=ended,
            start_offset=start,
            end_offset=self._log_end(start),
        )

    def _small_file(self, name: str) -> bytes | None:
        """The file, or its backup where it is no JSON: what a start would use. RocketMQ's JSON has bare number keys."""
        for candidate in (name, f"{name}.bak"):
            data = self._files.read(f"{self._path}/{candidate}")
            if data is not None and data.strip().endswith(b"}"):
                return data
        if name == CONSUMER_OFFSETS and any(
            f"config/{each}".startswith(name) for each in self._files.names_in(f"{self._path}/config")
        ):
            return UNREADABLE_OFFSETS
        return None

    def _sizes(self) -> FileSizes:
        log_bytes, queue_bytes = sizes_found(self._files, self._path)
        slots = entries = None
        index = self._reader.index_files()
        if index:
            file_bytes = os.stat(index[0]).st_size
            if (found := slot_bytes(file_bytes)) is not None:
                slots = found // 4
                entries = (file_bytes - INDEX_HEADER.size - found) // 20
        return FileSizes(
            commit_log_file_bytes=log_bytes or StoreOptions().commit_log_file_bytes,
            consume_queue_file_bytes=queue_bytes,
            index_slots=slots,
            index_entries=entries,
        )

    def _end_if_ended(self, topic: str, queue_id: int, log_start: int) -> int | None:
        """The next number of a queue whose last record lies below the log; None for all others."""
        found = self._reader.queue_files(topic, queue_id)
        if not found:
            return None
        start, path, file_bytes = found[-1]
        with open(path, "rb") as file:
            low, high = 0, file_bytes // QUEUE_ENTRY.size
            while low < high:
                middle = (low + high) // 2
                offset, size = _entry(file.fileno(), middle)
                low, high = (middle + 1, high) if offset >= 0 and size > 0 else (low, middle)
            if low == 0:
                return start // QUEUE_ENTRY.size or None
            offset, _ = _entry(file.fileno(), low - 1)
        return start // QUEUE_ENTRY.size + low if offset < log_start else None

    def _log_end(self, log_start: int) -> int:
        """Where the log ends now: what a broker appends while this looks may or may not belong to it."""
        begin = self._known_boundary(log_start)
        for item in self._reader.walk(begin):
            if isinstance(item, LogEnd):
                return item.offset
        return log_start

    def _known_boundary(self, log_start: int) -> int:
        """A place not far from the log's end at which a record begins."""
        data = self._files.read(f"{self._path}/delaymq/{SNAPSHOT}")
        if data is not None:
            try:
                snapshot = decode_snapshot(data)
            except ValueError:
                snapshot = None
            if snapshot is not None and snapshot.last_offset >= log_start:
                record = self._reader.record_at(snapshot.last_offset)
                if record is not None and record.store_timestamp_ms == snapshot.last_store_timestamp_ms:
                    return snapshot.last_offset
        used = [each.base for each in self._reader.segments() if _begins_with_data(each.path)]
        return used[-2] if len(used) > 1 else log_start

    def read(self, base: int, position: int, count: int) -> bytes:
        """See BackupSource."""
        if self._open is None or self._open[0] != base:
            self.close()
            try:
                descriptor = os.open(f"{self._path}/commitlog/{segment_name(base)}", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise SegmentGoneError(f"{segment_name(base)} was deleted meanwhile") from error
            self._open = base, descriptor
        data = self._files.pread(self._open[1], count, position)
        if not data:
            raise BackupError(f"{self._path}/commitlog/{segment_name(base)} is shorter than it was: is it being cut?")
        return data

    def pin(self, oldest: int) -> None:
        """Nothing to do: a broker on the folder is not asked."""

    def close(self) -> None:
        """See BackupSource."""
        if self._open is not None:
            os.close(self._open[1])
            self._open = None


def _entry(descriptor: int, number: int) -> tuple[int, int]:
    data = os.pread(descriptor, QUEUE_ENTRY.size, number * QUEUE_ENTRY.size)
    if len(data) < QUEUE_ENTRY.size:
        return -1, 0
    offset, size, _ = QUEUE_ENTRY.unpack(data)
    return offset, size


def _begins_with_data(path: str) -> bool:
    with open(path, "rb") as file:
        return any(file.read(8))


def require_plausible(state: SourceState) -> None:
    """BackupError for what no store tells: names and numbers of a source are used for paths and loops."""
    segment_bytes, start, end = state.sizes.commit_log_file_bytes, state.start_offset, state.end_offset
    if not 0 <= start <= end < 1 << 63 or start % segment_bytes or (end - start) // segment_bytes > MAX_SEGMENTS:
        raise BackupError(f"no store has a log from {start} to {end} in segments of {segment_bytes} bytes")
    for name in state.small_files:
        if not is_small_file(name):
            raise BackupError(f"the source names a small file that no store has ({name[:100]!r}): is it a broker?")
    for queue in state.ended_queues:
        _require_queue(*queue)


def _require_queue(topic: str, queue_id: int, end: int) -> None:
    if not is_plain(topic) or not 0 <= queue_id < 1 << 31 or not 0 < end < 1 << 58:
        raise BackupError(f"no store has a queue {queue_id} of {topic[:100]!r} that ends at {end}")


def encode_ended_queues(queues: Sequence[tuple[str, int, int]]) -> bytes:
    """queues.json of a backup."""
    return json.dumps(sorted(queues)).encode() + b"\n"


def decode_ended_queues(data: bytes) -> list[tuple[str, int, int]]:
    """What `encode_ended_queues` wrote; BackupError."""
    try:
        queues = [(str(topic), int(queue_id), int(end)) for topic, queue_id, end in json.loads(data)]
    except (ValueError, TypeError, RecursionError) as error:
        raise BackupError(f"queues.json cannot be read ({error}): take another backup") from error
    for queue in queues:
        _require_queue(*queue)
    return queues
