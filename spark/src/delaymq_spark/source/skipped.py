"""What of a store gives no rows, found on the driver."""

from __future__ import annotations

import os

from delaymq_spark.planning.parts import plan
from delaymq_spark.source.options import DEFAULT_SPLIT_BYTES
from delaymq_spark.source.read import windows
from delaymq_spark.store.segments import Skipped, check_store_path


def skipped(path: str | os.PathLike[str]) -> list[Skipped]:
    """Everything of the store at `path` that a read passes over, in order of the log; nothing is written.

    Walks through the whole log without making rows (some 30 ns for each record, and the disk). What stands behind the
    last whole record has `at_end` set: in a store that is in use it is a write under way. StorePathError.
    """
    found = plan(check_store_path(os.fspath(path)), DEFAULT_SPLIT_BYTES)
    told = list(found.skipped)
    for part in found.parts:
        for _ in windows(part, told.append):
            pass
    return sorted(told, key=lambda each: (each.offset, each.file))
