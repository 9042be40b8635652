"""Preparation of a closed store for a start that derives everything from its log again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from delaymq.store.disk.files import Files
from delaymq.store.disk.store_lock import StoreLock
from delaymq.store.layout import DELETED_TOPICS
from delaymq.store.replica.discarding import SNAPSHOTS


def rebuild(path: str | os.PathLike[str], deleted: Mapping[str, int], *, files: Files | None = None) -> None:
    """Let the next start of a closed store build its queues again, with other deletions of topics.

    StoreLockedError: a broker has opened the store. OSError.
    """
    path, files = os.fspath(path).rstrip("/"), files or Files()
    lock = StoreLock(files, f"{path}/lock")
    try:
        # Without it, the start would take the queues as they are.
        files.write(f"{path}/abort", b"")
        for name in SNAPSHOTS:
            files.unlink(f"{path}/{name}")
        file = f"{path}/delaymq/{DELETED_TOPICS}"
        files.write(f"{file}.tmp", json.dumps(dict(deleted)).encode())
        files.rename(f"{file}.tmp", file)
        for folder in ("", "/delaymq"):
            files.sync_folder(f"{path}{folder}")
    finally:
        lock.release()
