"""Removal of the log of a closed store, with everything that was derived from it."""

from __future__ import annotations

import os
from typing import Final

from delaymq.store.disk.files import Files
from delaymq.store.disk.store_lock import StoreLock

SNAPSHOTS: Final = ("delaymq/snapshot.json", "delaymq/snapshot.json.bak", "checkpoint")
"""Files that state what has been derived from the log."""
_FOLDERS: Final = ("commitlog", "consumequeue", "index", "delaymq/timeline")


def discard(path: str | os.PathLike[str], *, files: Files | None = None) -> None:
    """Delete the log of a closed store, the newest segment first, so that a crash leaves an earlier end of the log.

    Tables and the identity of the store remain. StoreLockedError: a broker has opened the store. OSError.
    """
    path, files = os.fspath(path).rstrip("/"), files or Files()
    lock = StoreLock(files, f"{path}/lock")
    try:
        for name in SNAPSHOTS:
            files.unlink(f"{path}/{name}")
        files.sync_folder(f"{path}/delaymq")
        for folder in _FOLDERS:
            _empty(files, f"{path}/{folder}")
    finally:
        lock.release()


def _empty(files: Files, folder: str) -> None:
    for name in reversed(files.names_in(folder)):
        each = f"{folder}/{name}"
        if files.is_folder(each):
            _empty(files, each)
            files.remove_folder(each)
        else:
            files.unlink(each)
    if files.is_folder(folder):
        files.sync_folder(folder)
