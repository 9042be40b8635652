"""Snapshot file, from which recovery starts instead of from the oldest record (docs/formats/store.md, "Snapshot").

It describes only durable data: state is captured on the event loop, then synced in any thread, then written.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import ConsumeQueues
from delaymq.store.disk.files import Files
from delaymq.store.index.index_file import IndexFile
from delaymq.store.index.key_index import IndexState, KeyIndex
from delaymq.store.model import StateFiles
from delaymq.store.snapshot.checkpoint import Checkpoint, write_checkpoint

NAME: Final = "snapshot.json"
FORMAT_VERSION: Final = 1
MANY_FILES: Final = 1_000
"""From this number on, one sync of the file system is faster than one per file: 80,000 took 38 s at a stop."""
_PREFIX: Final = b'{"crc32":"'
_PREFIX_BYTES: Final = len(_PREFIX) + 8 + 2


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Content of a snapshot."""

    log_end: int
    last_offset: int
    """Physical offset of the last record before `log_end`; -1 if there is none."""
    last_crc: int
    last_store_timestamp_ms: int
    queue_ends: dict[str, dict[str, int]]
    index: IndexState | None
    index_enabled: bool
    observers: dict[str, object]


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the file's bytes: one JSON object whose first member is the CRC32 of all bytes after it."""
    index = snapshot.index
    content = {
        "formatVersion": FORMAT_VERSION,
        "logEnd": snapshot.log_end,
        "last": [snapshot.last_offset, snapshot.last_crc, snapshot.last_store_timestamp_ms],
        "queues": snapshot.queue_ends,
        "index": None if index is None else [index.name, index.entries, index.slots_entries, list(index.numbers)],
        "indexEnabled": snapshot.index_enabled,
        "observers": snapshot.observers,
    }
    rest = json.dumps(content, separators=(",", ":")).encode()[1:] + b"\n"
    return _PREFIX + f"{crc32(rest):08x}".encode() + b'",' + rest


def decode_snapshot(data: bytes) -> Snapshot:
    """Return the snapshot in a file. ValueError with the reason if it is invalid."""
    if not data.startswith(_PREFIX) or len(data) < _PREFIX_BYTES:
        raise ValueError("it does not start with its checksum")
    if data[len(_PREFIX) : len(_PREFIX) + 8] != f"{crc32(data[_PREFIX_BYTES:]):08x}".encode():
        raise ValueError("its checksum does not match")
    content: dict[str, Any] = json.loads(data)
    if content.get("formatVersion") != FORMAT_VERSION:
        raise ValueError(f"its format version is {content.get('formatVersion')}, not {FORMAT_VERSION}")
    try:
        index = content["index"]
        return Snapshot(
            log_end=content["logEnd"],
            last_offset=content["last"][0],
            last_crc=content["last"][1],
            last_store_timestamp_ms=content["last"][2],
            queue_ends=content["queues"],
            index=None if index is None else IndexState(index[0], index[1], index[2], tuple(index[3])),
            index_enabled=content["indexEnabled"],
            observers=content["observers"],
        )
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"a part is missing ({error})") from error


class SnapshotTask:
    """Captures the state when created, on the event loop, and writes it in `run`.

    All index entries must be in files at the creation, and all queue entries before `run`.
    """

    def __init__(
        self,
        files: Files,
        store_path: str,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex | None,
        observers: dict[str, object],
        state_files: Sequence[StateFiles] = (),
        *,
        write_slots: bool,
        publish: bool = True,
    ) -> None:
        """`publish`: whether the snapshot is written after the sync of all files to which it refers."""
        self._publish = publish
        self._files = files
        self._state_files = state_files
        self._path = store_path
        self._log = log
        self._queues = queues
        self._index = index
        self._end = log.end_offset
        self._timestamp_ms = log.last_store_timestamp_ms
        self._log_start = log.flushed_offset
        self._log_descriptors = log.begin_sync(self._log_start, self._end)
        self._queue_files, self._folders = queues.take_unsynced()
        self._full_files: list[IndexFile] = []
        self._file: IndexFile | None = None
        self._slots = self._header = b""
        index_state = None
        if index is not None:
            index_state = self._capture_index(index, write_slots=write_slots)
        ends: dict[str, dict[str, int]] = {}
        for (topic, queue_id), queue in queues.table.items():
            ends.setdefault(topic, {})[str(queue_id)] = queue.max_number
        self.snapshot = Snapshot(
            log_end=self._end,
            last_offset=log.last_offset,
            last_crc=log.last_crc,
            last_store_timestamp_ms=self._timestamp_ms,
            queue_ends=ends,
            index=index_state,
            index_enabled=index is not None,
            observers=observers,
        )
        self._log_failure: OSError | None = None
        self._failure: OSError | None = None

    def _capture_index(self, index: KeyIndex, *, write_slots: bool) -> IndexState | None:
        self._full_files, index.unsynced_files = index.unsynced_files, []
        if index.folder_unsynced:
            self._folders.add(index.folder)
            index.folder_unsynced = False
        state = index.state()
        if state is None:
            return None
        self._file = index.files[-1]
        for file in (*self._full_files, self._file):
            file.descriptor()  # opened here: event loop and thread must not both create the file
        self._header = self._file.header()
        if write_slots or index.wants_slots():
            self._slots = self._file.copy_of_slots()
            state = state._replace(slots_entries=state.entries)
        return state

    def add_written(self) -> None:
        """Add queue files written since the creation to those to be synced. On the event loop, before `run`."""
        files, folders = self._queues.take_unsynced()
        self._queue_files |= files
        self._folders |= folders

    def abandon(self) -> None:
        """Cancel the task without running it. On the event loop."""
        self._failure = OSError(errno.ECANCELED, "the snapshot was cancelled")
        self.finish()

    def run(self) -> None:
        """Sync the captured files, then write the snapshot if it may be published; runs in any thread."""
        try:
            # Names are always included: a concurrent flush must not rely on this task for them.
            self._log.sync_files(self._log_descriptors, names=True)
        except OSError as error:
            self._log_failure = self._failure = error
            return
        try:
            if len(self._queue_files) < MANY_FILES or not self._files.sync_filesystem(self._path):
                for path in self._queue_files:
                    self._sync_queue_file(path)
            for file in self._full_files:
                file.sync()
                file.write_slots(file.copy_of_slots())
                file.write_header(file.header())
                file.sync()
            if self._file is not None:
                self._write_index(self._file)
            for folder in self._folders:
                try:
                    self._files.sync_folder(folder)
                except (FileNotFoundError, NotADirectoryError):
                    continue  # a topic was deleted in the meantime
            if self._publish:
                for state_files in self._state_files:
                    state_files.write()
                self._write()
        except OSError as error:
            self._failure = error
        except MemoryError:  # a state may have several MiB
            self._failure = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def _sync_queue_file(self, path: str) -> None:
        # Needs its own descriptor: the event loop may close the shared one, or delete the file with its topic.
        try:
            descriptor = self._files.open(path)
        except FileNotFoundError:
            return
        try:
            self._files.fdatasync(descriptor)
        finally:
            self._files.close(descriptor)

    def _write_index(self, file: IndexFile) -> None:
        file.sync()
        if self._slots:
            file.write_slots(self._slots)
        file.write_header(self._header)
        file.sync()

    def _write(self) -> None:
        own = f"{self._path}/delaymq"
        index_ms = self._index.safe_timestamp_ms if self._index is not None else 0
        if self._full_files:
            index_ms = max(index_ms, self._full_files[-1].end_timestamp_ms)
        checkpoint = Checkpoint(self._timestamp_ms, self._timestamp_ms, index_ms)
        write_checkpoint(self._files, f"{self._path}/checkpoint", checkpoint)
        self._files.write(f"{own}/{NAME}.tmp", encode_snapshot(self.snapshot))
        self._files.rename(f"{own}/{NAME}.tmp", f"{own}/{NAME}")
        self._files.sync_folder(own)

    def finish(self) -> OSError | None:
        """Apply the result; after a failure, return the files to the set of unsynced ones. On the event loop."""
        for state_files in self._state_files:
            state_files.finish(is_published=self._publish and self._failure is None)
        self._log.end_sync(self._log_start)
        if self._log_failure is not None:
            self._log.flush_failed(self._log_failure)
        index = self._index
        if self._failure is not None:
            self._queues.unsynced_files |= self._queue_files
            self._queues.unsynced_folders |= self._folders
            if index is not None:
                index.unsynced_files[:0] = self._full_files
            return self._failure
        self._log.flushed_to(self._end)
        if index is not None:
            for file in self._full_files:
                file.slots_count = file.count
                file.close()
                index.safe_timestamp_ms = file.end_timestamp_ms
            if self._file is not None and self._slots:
                assert self.snapshot.index is not None
                self._file.slots_count = self.snapshot.index.entries
        return None
