"""Restores a store from a backup: the log, the tables, and end offsets of queues without records in the log.

Queues, index and snapshot are not restored: the first start of the store builds them from the log. Until `finish`, the
store cannot be opened (state.json states the reason), so that an incomplete store is never served.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Final

from delaymq.store.backup.backup import QUEUES
from delaymq.store.backup.check import files_of, problem_of, require_complete_row
from delaymq.store.backup.manifest import NAME, Copied, Manifest, read_manifest
from delaymq.store.backup.source import decode_ended_queues
from delaymq.store.consume_queue import BLANK_ENTRY, ENTRY_BYTES
from delaymq.store.disk.files import Files
from delaymq.store.disk.store_lock import StoreLock
from delaymq.store.errors import BackupError, StoreLockedError, WrongFolderError
from delaymq.store.layout import RESTORED, make_folders, new_state, read_state_as_it_is, write_state
from delaymq.store.options import StoreOptions
from delaymq.store.segments import segment_name

CHUNK_BYTES: Final = 4 << 20
UNFINISHED: Final = "an unfinished restore"
LOCK: Final = "lock"
_MAY_BE_THERE: Final = frozenset({"lost+found", LOCK})
"""Names allowed in the target folder: those of an empty volume, and the file with which a restore starts."""
_STATE: Final = "state.json"


class Restore:
    """One restore: `lay_out`, then any additional files of the store, then `finish`."""

    def __init__(
        self,
        backup: str,
        target: str,
        *,
        new_store_id: bool = False,
        move: bool = False,
        left_out: frozenset[str] = frozenset(),
        progress: Callable[[int, int], None] = lambda done, total: None,
        files: Files | None = None,
    ) -> None:
        """`move`: move the backup's files. `left_out`: small files to omit. BackupError if it cannot be restored."""
        self._files = files or Files()
        self._backup = backup.rstrip("/")
        self._target = target.rstrip("/")
        self._move = move
        self._left_out = left_out | {QUEUES}
        self._progress = progress
        try:
            manifest = read_manifest(self._files, self._backup)
        except NotADirectoryError:
            manifest = None
        if manifest is None:
            raise WrongFolderError(
                f"{backup} contains no finished backup: {NAME} is missing; run the backup again and let it finish"
            )
        require_complete_row(manifest)
        self.manifest = manifest
        """Manifest of the backup."""
        required = manifest.minimum_reader
        state = replace(new_state(), format_version=required, minimum_reader=required)
        if manifest.store_id and not new_store_id:
            state = replace(state, store_id=manifest.store_id)
        self._state = state
        self._lock: StoreLock | None = None
        self._done = 0
        self._total = sum(each.file_bytes for _, each in files_of(manifest))

    @property
    def store_id(self) -> str:
        """Id of the new store."""
        return self._state.store_id

    def options(self) -> StoreOptions:
        """Options with which to open the store: the original file sizes where the backup contains them."""
        return options_of(self.manifest, StoreOptions())

    def lay_out(self) -> None:
        """Copy and check all files. BackupError names damaged files; OSError if the disk fails.

        Until `finish`, the folder is locked against other restores and brokers.
        """
        self._require_empty()
        os.makedirs(self._target, exist_ok=True)
        try:
            self._lock = StoreLock(self._files, f"{self._target}/{LOCK}")
        except StoreLockedError as error:
            raise BackupError(
                f"another restore or a broker is using {self._target}: wait until the restore ends, stop the broker, or"
                " specify another folder"
            ) from error
        try:
            if self._require_empty():
                self._clear()
            self._lay_out()
        except BaseException:
            self._release()
            raise

    def _lay_out(self) -> None:
        files, target = self._files, self._target
        make_folders(files, target)
        # First, so that a program that cannot read the backup's records never finds them without this statement.
        write_state(files, target, replace(self._state, unfinished=UNFINISHED))
        # The next start rebuilds everything derived from the log, and clamps offsets beyond it.
        files.write(f"{target}/abort", b"")
        files.write(f"{target}/delaymq/{RESTORED}", b'{"version":1}\n')
        for name, copied in self.manifest.small_files.items():
            self._small_file(name, copied)
        for name, copied in self.manifest.segments.items():
            self._segment(name, copied)
        self._ended_queues()
        for folder in ("config", "delaymq", "commitlog", "consumequeue", ""):
            files.sync_folder(f"{target}/{folder}".rstrip("/"))

    def finish(self) -> None:
        """Turn the folder into a store, durably."""
        write_state(self._files, self._target, self._state)
        self._release()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _require_empty(self) -> bool:
        """Raise WrongFolderError if the folder has other files; return whether it contains an interrupted restore."""
        files, target = self._files, self._target
        if os.path.exists(target) and not files.is_folder(target):
            raise WrongFolderError(f"{target} is not a folder: specify another one")
        # A clone is copied into a subfolder and moved from there.
        ignored = _MAY_BE_THERE | {os.path.relpath(self._backup, target)}
        if not [name for name in files.names_in(target) if name not in ignored]:
            return False
        state = read_state_as_it_is(files, target)
        if state is None or state.unfinished != UNFINISHED:
            raise WrongFolderError(f"{target} is not empty: restore into an empty folder")
        return True

    def _clear(self) -> None:
        """Remove files of an interrupted restore, possibly of another backup."""
        files, target = self._files, self._target
        for folder in ("commitlog", "config", "delaymq"):
            for name in files.names_in(f"{target}/{folder}"):
                if name != _STATE:
                    files.unlink(f"{target}/{folder}/{name}")
        for name in files.names_in(f"{target}/consumequeue"):
            shutil.rmtree(f"{target}/consumequeue/{name}")

    def _small_file(self, name: str, copied: Copied) -> None:
        path = f"{self._backup}/{self.manifest.tables}/{name}"
        self._require(path, copied)
        self._advance(copied.file_bytes)
        if name not in self._left_out:
            self._files.write(f"{self._target}/{name}", self._files.read(path) or b"")

    def _require(self, path: str, copied: Copied) -> None:
        if (problem := problem_of(path, copied)) is not None:
            raise BackupError(f"{path}: {problem}")

    def _segment(self, name: str, copied: Copied) -> None:
        source, target = f"{self._backup}/commitlog/{name}", f"{self._target}/commitlog/{name}"
        if self._move:
            self._files.rename(source, target)
            self._advance(copied.file_bytes)
        with self._opened(target) as descriptor:
            if not self._move:
                self._copy(source, descriptor, copied)
            segment_bytes = self.manifest.sizes.commit_log_file_bytes
            self._files.set_size(descriptor, copied.file_bytes)
            self._files.set_size(descriptor, segment_bytes)
            if copied.file_bytes < segment_bytes:
                # The store writes to it through a mapping, which must not encounter a full disk.
                self._files.allocate(descriptor, segment_bytes)
            self._files.fdatasync(descriptor)

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        descriptor = self._files.open(path, create=True)
        try:
            yield descriptor
        finally:
            self._files.close(descriptor)

    def _copy(self, source: str, descriptor: int, copied: Copied) -> None:
        checksum = sha256()
        position = 0
        try:
            file = open(source, "rb")  # noqa: SIM115
        except FileNotFoundError as error:
            raise BackupError(f"{source}: the file is missing: take another backup") from error
        with file:
            while position < copied.file_bytes:
                piece = file.read(min(CHUNK_BYTES, copied.file_bytes - position))
                if not piece:
                    break
                checksum.update(piece)
                if any(piece):
                    self._files.pwrite(descriptor, piece, position)
                position += len(piece)
                self._advance(len(piece))
        if position < copied.file_bytes or checksum.hexdigest() != copied.sha256:
            raise BackupError(f"{source}: {problem_of(source, copied) or 'it changed while it was read: try again'}")

    def _advance(self, count: int) -> None:
        self._done += count
        self._progress(self._done, self._total)

    def _ended_queues(self) -> None:
        """Continue the offsets of queues without records: create their last file with blank entries."""
        copied = self.manifest.small_files.get(QUEUES)
        if copied is None:
            return
        data = self._files.read(f"{self._backup}/{self.manifest.tables}/{QUEUES}") or b""
        file_bytes = self.options().consume_queue_file_bytes
        entries = file_bytes // ENTRY_BYTES
        for topic, queue_id, end in decode_ended_queues(data):
            first = (end - 1) // entries * entries
            folder = f"{self._target}/consumequeue/{topic}/{queue_id}"
            os.makedirs(folder, exist_ok=True)
            with self._opened(f"{folder}/{segment_name(first * ENTRY_BYTES)}") as descriptor:
                self._files.pwrite(descriptor, BLANK_ENTRY * (end - first), 0)
                self._files.set_size(descriptor, file_bytes)


def options_of(manifest: Manifest, default: StoreOptions) -> StoreOptions:
    """Return `default` with the original sizes and kinds of files where the backup contains them."""
    sizes = manifest.sizes
    return replace(
        default,
        commit_log_file_bytes=sizes.commit_log_file_bytes,
        consume_queue_file_bytes=sizes.consume_queue_file_bytes or default.consume_queue_file_bytes,
        index_slots=sizes.index_slots or default.index_slots,
        index_entries=sizes.index_entries or default.index_entries,
        index_enable=sizes.index_enabled,
    )
