"""One broker per store: the lock on byte 0 of `lock`, the same that the real broker takes."""

from __future__ import annotations

import os
from typing import ClassVar

from delaymq.store.disk.files import Files
from delaymq.store.errors import StoreLockedError

_CONTENT = b"lock"


class StoreLock:
    """Held until `release`. The file is opened once a process: closing a second descriptor would drop the lock."""

    _held: ClassVar[set[str]] = set()
    """Paths that this process has: the system's lock does not hold against ourselves."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = os.path.realpath(path)
        if self._path in self._held:
            raise StoreLockedError(f"{path} is locked: this process has the store open already")
        self._descriptor = files.open(path, create=True)
        if not files.try_lock(self._descriptor):
            files.close(self._descriptor)
            raise StoreLockedError(f"{path} is locked: another broker uses this store; stop it, or use another folder")
        if files.pread(self._descriptor, len(_CONTENT), 0) != _CONTENT:
            files.pwrite(self._descriptor, _CONTENT, 0)
        self._held.add(self._path)

    def release(self) -> None:
        """Let another process have the store."""
        self._held.discard(self._path)
        self._files.close(self._descriptor)
