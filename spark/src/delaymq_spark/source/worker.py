"""Start of the Python process in which Spark runs a read."""

from __future__ import annotations

import gc
from zipimport import zipimporter

# pyspark, py4j and Spark's core itself, which all are on a worker's path.
_SPARK_ARCHIVES = ("pyspark.zip", "-src.zip", ".jar")
_reread_archives = zipimporter.invalidate_caches


def skip_archive_rereads() -> None:
    """Spare each further task of this process some 50 ms.

    Before each task Spark's worker calls `importlib.invalidate_caches()`, and Python 3.11 then reads the directory of
    the archive anew for every package in it, thousands of names each time, of archives that never change. After each
    it collects garbage; what is loaded by now is none. May be called for each task.
    """
    if zipimporter.invalidate_caches is _reread_archives:
        zipimporter.invalidate_caches = _unless_sparks_own  # type: ignore[method-assign, assignment]
        gc.collect()
        gc.freeze()


def _unless_sparks_own(finder: zipimporter) -> None:
    if not finder.archive.endswith(_SPARK_ARCHIVES):
        _reread_archives(finder)
