"""Parts of a store that give no rows, found on the driver."""

from __future__ import annotations

import os

from delaymq_spark.planning.parts import plan
from delaymq_spark.source.options import DEFAULT_SPLIT_BYTES
from delaymq_spark.source.read import windows
from delaymq_spark.store.segments import Skipped, check_store_path


def skipped(path: str | os.PathLike[str]) -> list[Skipped]:
    """Return all parts of the store at `path` that a read skips, in log order; nothing is written.

    Scans the whole log without creating rows (about 30 ns per record, and disk reads), and Bytes after the last complete
    record have `at_end` set; in a store in use, they are an in progress. StorePathError.
    """
    found = plan(check_store_path(os.fspath(path)), DEFAULT_SPLIT_BYTES)
    told = list(found.skipped)
    for part in found.parts:
        for _ in windows(part, told.append):
            pass
    return sorted(told, key=lambda each: (each.offset, each.file))
