"""Interface of the source of a backup, and its implementation for a store's directory.

The order of reads from a source matters: first positions (consumer offsets, delay positions), then the log's end.
Therefore no position is ahead of the copied log.
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
from delaymq.store.layout import BASE_VERSION, FORMAT_VERSION, read_state, read_state_as_it_is, sizes_found
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
    "delaymq/delay_settings.json",
    "delaymq/deleted_topics.json",
    "delaymq/delivery.json",
)
"""Files that a restore needs in addition to the log. Queues, index and snapshot are built from the log."""


@dataclass(frozen=True, kw_only=True)
class SourceState:
    """Data to be copied."""

    minimum_reader: int = BASE_VERSION
    """Lowest format version of programs that may read the log up to `end_offset` (`store.layout`)."""
    store_id: str
    broker_name: str | None
    message_delay_level: str | None
    sizes: FileSizes
    small_files: Mapping[str, bytes]
    ended_queues: Sequence[tuple[str, int, int]]
    """Topic, queue id and next queue offset of queues without records in the log: their offsets must not restart."""
    start_offset: int
    end_offset: int


class BackupSource(Protocol):
    """A store that can be copied while it is being written."""

    def state(self) -> SourceState:
        """Return the current state. BackupError if the source cannot be read."""

    def read(self, base: int, position: int, count: int) -> bytes:
        """Return 1 to `count` bytes at `position` of the segment at `base`. SegmentGoneError, BackupError."""

    def pin(self, oldest: int) -> None:
        """Protect everything from physical offset `oldest` on from deletion; called regularly during the backup."""

    def close(self) -> None:
        """End the backup, complete or not."""


class FolderSource:
    """Directory of a store, whose broker may run but is not contacted: a read shows whether a segment was deleted."""

    def __init__(self, path: str, files: Files | None = None) -> None:
        self._path = path.rstrip("/")
        self._files = files or Files()
        try:
            self._reader = StoreReader(self._path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise WrongFolderError(f"{path} is not a store: it has no commitlog folder") from error
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
                return self._read_state(self._group_id() or (state.store_id if state is not None else ""), small_files)
            except FileNotFoundError:
                continue  # retention deleted segments between the two reads
        raise BackupError(f"{self._path} changes faster than it can be read: try again later")

    def _group_id(self) -> str:
        """Return the id of the log that the members of a replicated group share; empty without replicas."""
        data = self._files.read(f"{self._path}/delaymq/epochs.json")
        try:
            return str(json.loads(data)["storeId"]) if data is not None else ""
        except (ValueError, KeyError, TypeError) as error:
            raise BackupError(f"{self._path}/delaymq/epochs.json cannot be read ({error}): check the disk") from error

    def _read_state(self, store_id: str, small_files: Mapping[str, bytes]) -> SourceState:
        segments = self._reader.segments()
        start = segments[0].base if segments else 0
        ended = [(*queue, end) for queue in self._reader.queues() if (end := self._end_if_ended(*queue, start))]
        log_end = self._log_end(start)
        return SourceState(
            # Read last: a running broker raises it before it appends the first record that requires it.
            minimum_reader=self._minimum_reader(),
            store_id=store_id,
            broker_name=None,
            message_delay_level=None,
            sizes=self._sizes(),
            small_files=small_files,
            ended_queues=ended,
            start_offset=start,
            end_offset=log_end,
        )

    def _minimum_reader(self) -> int:
        state = read_state_as_it_is(self._files, self._path)
        if state is not None:
            return max(state.minimum_reader, BASE_VERSION)
        # Only RocketMQ's broker has opened a store without state.json. A damaged one may have stated any number.
        return BASE_VERSION if self._files.facts(f"{self._path}/delaymq/state.json") is None else FORMAT_VERSION

    def _small_file(self, name: str) -> bytes | None:
        """Return the file, or its backup if it is not JSON, like a start. RocketMQ's JSON has unquoted number keys."""
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
        """Return the next queue offset of a queue whose last record is below the log's start; None for all others."""
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
        """Return the current end of the log; records appended during the search may or may not be included."""
        begin = self._known_boundary(log_start)
        for item in self._reader.walk(begin):
            if isinstance(item, LogEnd):
                return item.offset
        return log_start

    def _known_boundary(self, log_start: int) -> int:
        """Return the offset of a record near the log's end."""
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
                raise SegmentGoneError(f"{segment_name(base)} was deleted in the meantime") from error
            self._open = base, descriptor
        data = self._files.pread(self._open[1], count, position)
        if not data:
            raise BackupError(f"{self._path}/commitlog/{segment_name(base)} became shorter: check what truncated it")
        return data

    def pin(self, oldest: int) -> None:
        """Do nothing: the folder's broker is not contacted."""

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
    """Raise BackupError for impossible values: names and numbers of a source are used in paths and loops."""
    if not BASE_VERSION <= state.minimum_reader <= FORMAT_VERSION:
        raise BackupError(
            f"the store requires a program that reads format version {state.minimum_reader}, but this one reads"
            f" {BASE_VERSION} to {FORMAT_VERSION}: use the version of the program that wrote the store"
        )
    segment_bytes, start, end = state.sizes.commit_log_file_bytes, state.start_offset, state.end_offset
    if not 0 <= start <= end < 1 << 63 or start % segment_bytes or (end - start) // segment_bytes > MAX_SEGMENTS:
        raise BackupError(f"invalid source: a log from {start} to {end} in segments of {segment_bytes} bytes")
    for name in state.small_files:
        if not is_small_file(name):
            raise BackupError(f"the source names an unknown small file ({name[:100]!r}): check that it is a broker")
    for queue in state.ended_queues:
        _require_queue(*queue)


def _require_queue(topic: str, queue_id: int, end: int) -> None:
    if not is_plain(topic) or not 0 <= queue_id < 1 << 31 or not 0 < end < 1 << 58:
        raise BackupError(f"invalid source: queue {queue_id} of {topic[:100]!r} ends at {end}")


def encode_ended_queues(queues: Sequence[tuple[str, int, int]]) -> bytes:
    """Return the content of a backup's queues.json."""
    return json.dumps(sorted(queues)).encode() + b"\n"


def decode_ended_queues(data: bytes) -> list[tuple[str, int, int]]:
    """Decode the content of queues.json. BackupError if it is invalid."""
    try:
        queues = [(str(topic), int(queue_id), int(end)) for topic, queue_id, end in json.loads(data)]
    except (ValueError, TypeError, RecursionError) as error:
        raise BackupError(f"queues.json cannot be read ({error}): take another backup") from error
    for queue in queues:
        _require_queue(*queue)
    return queues
