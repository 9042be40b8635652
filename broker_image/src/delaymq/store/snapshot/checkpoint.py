"""The files by which a start knows how the last stop was: checkpoint and abort marker."""

from __future__ import annotations

import struct
from typing import NamedTuple

from delaymq.store.disk.files import Files

_TIMESTAMPS = struct.Struct(">qqq")
CHECKPOINT_BYTES = 4096


class Checkpoint(NamedTuple):
    """Store times up to which things are on disk, ms. The real broker starts its replay 3 s before the smaller of the
    first two, so they must never claim too much."""

    commit_log_ms: int
    consume_queue_ms: int
    index_ms: int


def write_checkpoint(files: Files, path: str, checkpoint: Checkpoint) -> None:
    """Overwrite the timestamps in place, as the real broker does, and wait for the disk."""
    descriptor = files.open(path, create=True)
    try:
        facts = files.facts(path)
        if facts is None or facts.file_bytes != CHECKPOINT_BYTES:
            files.set_size(descriptor, CHECKPOINT_BYTES)
        files.pwrite(descriptor, _TIMESTAMPS.pack(*checkpoint), 0)
        files.fdatasync(descriptor)
    finally:
        files.close(descriptor)
