"""Removal of older runs' results, which would otherwise fill the volume of scheduled runs.

A run writes to a directory whose name ends with a hyphen and a unique word. Directories next to it whose names differ
only in that word are runs of the same kind.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

_RESULTS: Final = frozenset(
    {"compaction.parquet", "delay.parquet", "traffic.parquet", "summary.json", "report.html"}
    | {".summary.json.part", ".report.html.part"}
)
"""Files written by a run. A directory that contains anything else is not a result."""


def prefix_of(out: Path) -> str | None:
    """Return the common prefix of the names of a kind of runs; None if the name of `out` does not end in `-WORD`."""
    prefix, hyphen, word = out.name.rpartition("-")
    return f"{prefix}-" if prefix and hyphen and word else None


def remove_old_runs(out: Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` runs of the same kind as `out`, which is the newest; return the removed ones.
    OSError.
    """
    prefix = prefix_of(out)
    if prefix is None:
        return []
    others = [
        path for path in out.parent.iterdir() if path.name != out.name and prefix_of(path) == prefix and _is_run(path)
    ]
    others.sort(key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)
    removed = others[max(keep - 1, 0) :]
    for path in removed:
        shutil.rmtree(path)
    return removed


def _is_run(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        return False
    return _RESULTS.issuperset(os.listdir(path))
