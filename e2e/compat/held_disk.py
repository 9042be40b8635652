"""Start ``delaymq`` on a disk that a test can block: ``python held_disk.py FOLDER ARGUMENTS OF delaymq``.

While FOLDER/sync exists, syncs of the log block; while FOLDER/write exists, writes to the log block, and with them the
event loop, as if the kernel had to load a page first. Both replace functions of the store at run time.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

POLL_S = 0.005


def hold(folder: Path) -> None:
    """Replace the store's functions by blocking ones."""
    from delaymq.store.message_store import MessageStore

    append, append_encoded_sends = MessageStore.append, MessageStore.append_encoded_sends
    flush_task = MessageStore.flush_task

    def held_append(store: MessageStore, message: Any) -> Any:
        _wait_while(folder / "write")
        return append(store, message)

    def held_append_encoded_sends(store: MessageStore, *how: Any) -> Any:
        _wait_while(folder / "write")
        return append_encoded_sends(store, *how)

    def held_flush_task(store: MessageStore) -> Any:
        task = flush_task(store)
        return None if task is None else _HeldTask(task, folder / "sync")

    laid_over: Any = MessageStore
    laid_over.append = held_append
    laid_over.append_encoded_sends = held_append_encoded_sends
    laid_over.flush_task = held_flush_task


class _HeldTask:
    def __init__(self, task: Any, held_by: Path) -> None:
        self._task = task
        self._held_by = held_by

    def run(self) -> None:
        _wait_while(self._held_by)
        self._task.run()

    def finish(self) -> Any:
        return self._task.finish()


def _wait_while(path: Path) -> None:
    if path.exists():
        path.with_suffix(".waiting").touch()
        # An aborted test leaves its broker without a parent.
        parent = os.getppid()
        while path.exists() and os.getppid() == parent:
            time.sleep(POLL_S)


def main() -> None:
    """Install the blocking functions, then run ``delaymq``."""
    hold(Path(sys.argv[1]))
    sys.argv[1:2] = []
    runpy.run_module("delaymq", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
