"""Checkpoint file and abort marker, which show a start how the broker stopped."""

from __future__ import annotations

import struct
from typing import NamedTuple

from delaymq.store.disk.files import Files

_TIMESTAMPS = struct.Struct(">qqq")
CHECKPOINT_BYTES = 4096


class Checkpoint(NamedTuple):
    """Store times in ms up to which files are durable. RocketMQ's broker starts its replay 3 s before the smaller one
    of the first two, so they must never be too late."""

    commit_log_ms: int
    consume_queue_ms: int
    index_ms: int


def write_checkpoint(files: Files, path: str, checkpoint: Checkpoint) -> None:
    """Overwrite the timestamps in place, as RocketMQ's broker does, and sync the file."""
    descriptor = files.open(path, create=True)
    try:
        facts = files.facts(path)
        if facts is None or facts.file_bytes != CHECKPOINT_BYTES:
            files.set_size(descriptor, CHECKPOINT_BYTES)
        files.pwrite(descriptor, _TIMESTAMPS.pack(*checkpoint), 0)
        files.fdatasync(descriptor)
    finally:
        files.close(descriptor)
