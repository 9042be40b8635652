"""Exclusive lock of a store on byte 0 of file `lock`, as in RocketMQ's broker."""

from __future__ import annotations

import os
from typing import ClassVar

from delaymq.store.disk.files import Files
from delaymq.store.errors import StoreLockedError

_CONTENT = b"lock"


class StoreLock:
    """Lock, held until `release`. A process opens the file only once: closing a second descriptor drops the lock."""

    _held: ClassVar[set[str]] = set()
    """Paths locked by this process, against which the system's lock has no effect."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = os.path.realpath(path)
        if self._path in self._held:
            raise StoreLockedError(f"{path} is locked: this process has already opened the store")
        self._descriptor = files.open(path, create=True)
        if not files.try_lock(self._descriptor):
            files.close(self._descriptor)
            raise StoreLockedError(f"{path} is locked: another broker uses this store; stop it, or use another folder")
        if files.pread(self._descriptor, len(_CONTENT), 0) != _CONTENT:
            files.pwrite(self._descriptor, _CONTENT, 0)
        self._held.add(self._path)

    def release(self) -> None:
        """Release the lock for other processes."""
        self._held.discard(self._path)
        self._files.close(self._descriptor)
