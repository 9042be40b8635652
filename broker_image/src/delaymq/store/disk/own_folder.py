"""A folder in delaymq/ for files that belong to one part of the broker."""

from __future__ import annotations

import weakref
from typing import Protocol, runtime_checkable

from delaymq.store.disk.files import Files


class OwnFile:
    """An open file, closed when the last reference to it is dropped."""

    def __init__(self, files: Files, path: str, *, create: bool) -> None:
        self._files = files
        self._descriptor = files.open(path, create=create)
        weakref.finalize(self, files.close, self._descriptor)
        if create:
            files.set_size(self._descriptor, 0)

    def pread(self, count: int, position: int) -> bytes:
        """Return up to `count` bytes. OSError."""
        return self._files.pread(self._descriptor, count, position)

    def pwrite(self, data: bytes, position: int) -> None:
        """Write all of `data`. OSError."""
        self._files.pwrite(self._descriptor, data, position)

    def sync(self) -> None:
        """Flush the content to disk; runs in any thread. OSError."""
        self._files.fdatasync(self._descriptor)


class OwnFolder:
    """The folder, which is created with its first file."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def create(self, name: str) -> OwnFile:
        """Create an empty file. OSError."""
        self._make()
        return OwnFile(self._files, f"{self._path}/{name}", create=True)

    def open(self, name: str) -> OwnFile:
        """Open a file. OSError."""
        return OwnFile(self._files, f"{self._path}/{name}", create=False)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it is missing. OSError."""
        return self._files.read(f"{self._path}/{name}")

    def write(self, name: str, *parts: bytes) -> None:
        """Create or replace a file and flush its content to disk; runs in any thread. OSError."""
        self._make()
        self._files.write(f"{self._path}/{name}", *parts)

    def remove(self, name: str) -> None:
        """Remove a file if it exists. OSError."""
        self._files.unlink(f"{self._path}/{name}")

    def names(self) -> list[str]:
        """Return the names of all files."""
        return self._files.names_in(self._path)

    def sync_names(self) -> None:
        """Flush the names of created and removed files to disk; runs in any thread. OSError."""
        if self._files.is_folder(self._path):
            self._files.sync_folder(self._path)

    def _make(self) -> None:
        if self._files.make_folder(self._path):
            self._files.sync_folder(self._path.rpartition("/")[0])


@runtime_checkable
class UsesFolder(Protocol):
    """An observer of the replay that needs a folder of the store."""

    folder_name: str

    def use_folder(self, folder: OwnFolder, segment_bytes: int) -> None:
        """Use this folder; called before `restore`. `segment_bytes` is the size of the log's segments."""
