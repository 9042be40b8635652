"""Read-only access to a store or a backup: all writes of a start go to a scratch folder.

Log segments are read through a private mapping. The non-zero parts of every other file are copied before the first
change. A start on a read-only file system therefore works like any other start and leaves nothing behind.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from typing import Final

from delaymq.store.backup.backup import QUEUES
from delaymq.store.backup.manifest import is_backup, read_manifest
from delaymq.store.backup.restore import options_of
from delaymq.store.backup.source import decode_ended_queues
from delaymq.store.consume_queue import BLANK_ENTRY, ENTRY_BYTES
from delaymq.store.disk.files import FileFacts, Files
from delaymq.store.errors import BackupError
from delaymq.store.options import StoreOptions
from delaymq.store.segments import segment_name

_COPIED_AT_ONCE: Final = 1 << 20


class ReadOnlyFiles(Files):
    """Files below `path`; changes stay in a scratch folder until `remove_scratch`."""

    def __init__(self, path: str) -> None:
        self._path = path.rstrip("/")
        self._scratch = tempfile.mkdtemp(prefix="delaymq-read-only-")
        self._gone: set[str] = set()
        self._untouched: dict[int, str] = {}
        """Open descriptors of unmodified files → path."""

    def remove_scratch(self) -> None:
        """Delete the scratch folder with all changes."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _there(self, path: str) -> str:
        """Return the path of the changed copy of a file, which may not exist."""
        inside = path.removeprefix(self._path).lstrip("/")
        return f"{self._scratch}/{inside}" if inside else self._scratch

    def _now(self, path: str) -> str:
        """Return the path of the current version of the file."""
        there = self._there(path)
        return there if os.path.lexists(there) or path in self._gone else path

    def _copied(self, path: str) -> str:
        """Return the path of the file's copy; create the copy if it is missing."""
        there = self._there(path)
        os.makedirs(os.path.dirname(there), exist_ok=True)
        if not os.path.lexists(there) and path not in self._gone and os.path.isfile(path):
            source, target = os.open(path, os.O_RDONLY), os.open(there, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                file_bytes = os.fstat(source).st_size
                os.ftruncate(target, file_bytes)
                for first, last in self.data_ranges(source, 0, file_bytes):
                    for position in range(first, last, _COPIED_AT_ONCE):
                        data = os.pread(source, min(_COPIED_AT_ONCE, last - position), position)
                        super().pwrite(target, data, position)
            finally:
                os.close(source)
                os.close(target)
        self._gone.discard(path)
        return there

    def _make_own(self, descriptor: int) -> None:
        """Redirect a descriptor of an unmodified file to a copy of it, before a change."""
        path = self._untouched.pop(descriptor, None)
        if path is not None:
            copy = os.open(self._copied(path), os.O_RDWR | os.O_CLOEXEC)
            os.dup2(copy, descriptor, inheritable=False)
            os.close(copy)

    def open(self, path: str, *, create: bool = False) -> int:
        now = self._now(path)
        if now == path and os.path.isfile(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._untouched[descriptor] = path
            return descriptor
        if create:
            now = self._copied(path)
        return super().open(now, create=create)

    def close(self, descriptor: int) -> None:
        self._untouched.pop(descriptor, None)
        super().close(descriptor)

    def allocate(self, descriptor: int, file_bytes: int) -> None:
        self.set_size(descriptor, file_bytes)

    def set_size(self, descriptor: int, file_bytes: int) -> None:
        if os.fstat(descriptor).st_size != file_bytes:
            self._make_own(descriptor)
            super().set_size(descriptor, file_bytes)

    def map(self, descriptor: int, file_bytes: int) -> mmap.mmap:
        if os.fstat(descriptor).st_size < file_bytes:
            self.set_size(descriptor, file_bytes)
        return mmap.mmap(descriptor, file_bytes, access=mmap.ACCESS_COPY)

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self._make_own(descriptor)
        super().pwrite(descriptor, data, position)

    def fdatasync(self, descriptor: int) -> None:
        """Do nothing: changes are temporary."""

    def sync_filesystem(self, folder: str) -> bool:
        return True

    def sync_folder(self, path: str) -> None:
        """Do nothing: changes are temporary."""

    def rename(self, source: str, target: str) -> None:
        copy = self._copied(source)
        os.makedirs(os.path.dirname(self._there(target)), exist_ok=True)
        os.rename(copy, self._there(target))
        self._gone.add(source)
        self._gone.discard(target)

    def unlink(self, path: str) -> None:
        super().unlink(self._there(path))
        self._gone.add(path)

    def remove_folder(self, path: str) -> None:
        super().remove_folder(self._there(path))

    def make_folder(self, path: str) -> bool:
        if os.path.isdir(path):
            return False
        os.makedirs(os.path.dirname(self._there(path)), exist_ok=True)
        return super().make_folder(self._there(path))

    def names_in(self, path: str) -> list[str]:
        own = [name for name in super().names_in(path) if f"{path}/{name}" not in self._gone]
        return sorted({*own, *super().names_in(self._there(path))})

    def is_folder(self, path: str) -> bool:
        return super().is_folder(path) or super().is_folder(self._there(path))

    def facts(self, path: str) -> FileFacts | None:
        return super().facts(self._now(path))

    def allocated_bytes(self, path: str) -> int:
        return super().allocated_bytes(self._now(path))

    def read(self, path: str) -> bytes | None:
        return super().read(self._now(path))

    def write(self, path: str, *parts: bytes) -> None:
        there = self._there(path)
        os.makedirs(os.path.dirname(there), exist_ok=True)
        with open(there, "wb") as file:
            file.write(b"".join(parts))
        self._gone.discard(path)

    def try_lock(self, descriptor: int) -> bool:
        # A broker that has locked the store keeps running: reads do not disturb it.
        return True


def read_only_files(path: str, options: StoreOptions) -> tuple[ReadOnlyFiles, StoreOptions]:
    """Return the files of a store or a backup, and options with its file sizes. BackupError."""
    if not os.path.isdir(f"{path}/commitlog"):
        raise BackupError(f"{path} is neither a store nor a backup: it has no commitlog folder")
    files = ReadOnlyFiles(path)
    try:
        return files, _with_small_files(files, path, options) if is_backup(path) else options
    except BaseException:
        files.remove_scratch()
        raise


def _with_small_files(files: ReadOnlyFiles, path: str, options: StoreOptions) -> StoreOptions:
    """Add the files that a restore would create from a backup; return options with its file sizes."""
    manifest = read_manifest(Files(), path)
    assert manifest is not None
    options = options_of(manifest, options)
    for name in manifest.small_files:
        data = Files().read(f"{path}/{manifest.tables}/{name}") or b""
        if name != QUEUES:
            files.write(f"{path}/{name}", data)
            continue
        entries = options.consume_queue_file_bytes // ENTRY_BYTES
        for topic, queue_id, end in decode_ended_queues(data):
            first = (end - 1) // entries * entries
            blank = BLANK_ENTRY * (end - first)
            file = f"{path}/consumequeue/{topic}/{queue_id}/{segment_name(first * ENTRY_BYTES)}"
            files.write(file, blank.ljust(options.consume_queue_file_bytes, b"\0"))
    # As after a kill: recovery builds queues and index from the log.
    files.write(f"{path}/abort", b"")
    return options
