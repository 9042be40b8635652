"""Removal of the end of a closed store's log, with everything that was derived from it.

`cut` only states where the log has to end. The next start reads the log up to there, as if nothing followed, and moves
the rest to delaymq/aside/. Until it has finished, every start does the same.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace

from delaymq.store import layout
from delaymq.store.disk.files import Files
from delaymq.store.disk.store_lock import StoreLock
from delaymq.store.errors import CutError
from delaymq.store.layout import StoreState
from delaymq.store.segments import is_segment_name

_logger = logging.getLogger(__name__)


def cut(path: str | os.PathLike[str], offset: int, *, files: Files | None = None) -> None:
    """Durably state that the log of a closed store ends at `offset`, or before it if it is inside a record.

    A cut that no start has completed remains in force if it is lower. StoreLockedError: a broker has opened the store.
    NotAStoreError, CutError: the store cannot be cut there. OSError: nothing has changed, or the cut is stated.
    """
    path, files = os.fspath(path).rstrip("/"), files or Files()
    state = layout.read_state(files, path, [])
    if state is None:
        raise CutError(f"{path} cannot be cut: it has no readable delaymq/state.json")
    oldest = min((int(name) for name in files.names_in(f"{path}/commitlog") if is_segment_name(name)), default=0)
    if offset < oldest:
        raise CutError(f"{path} cannot be cut at offset {offset}: its log begins at {oldest}, so replace the store")
    lock = StoreLock(files, f"{path}/lock")
    try:
        if state.cut_at is not None:
            offset = min(offset, state.cut_at)
        unfinished = f"a log that has to be cut at offset {offset} by the version that decided so"
        layout.write_state(files, path, replace(state, cut_at=offset, unfinished=unfinished))
    finally:
        lock.release()


def finish_cut(files: Files, path: str, state: StoreState, end_offset: int) -> StoreState:
    """Record that the log and everything derived from it ends at `end_offset`; return the new state. OSError."""
    finished = replace(state, cut_at=None, unfinished="")
    layout.write_state(files, path, finished)
    _logger.warning("the log was cut at offset %d: what followed is in delaymq/aside", end_offset)
    return finished


def deletions_before(files: Files, path: str, deleted: Mapping[str, int], offset: int) -> dict[str, int]:
    """Return the deletions of topics at or before `offset`, and save them if there are others. OSError.

    The queues of the other topics follow from the log again.
    """
    kept = {topic: end for topic, end in deleted.items() if end <= offset}
    if len(kept) < len(deleted):
        file = f"{path}/delaymq/{layout.DELETED_TOPICS}"
        files.write(f"{file}.tmp", json.dumps(kept).encode())
        files.rename(f"{file}.tmp", file)
        files.sync_folder(f"{path}/delaymq")
    return kept
