"""Faster start of tasks in Spark's Python workers."""

from __future__ import annotations

import gc
from zipimport import zipimporter

_SPARK_ARCHIVES = ("pyspark.zip", "-src.zip", ".jar")
"""PySpark, Py4J and Spark's core, which are all on the path of a worker."""
_reread_archives = zipimporter.invalidate_caches


def skip_archive_rereads() -> None:
    """Save about 50 ms in each further task of this process. May be called for each task.

    Before each task, Spark's worker calls `importlib.invalidate_caches()`. Python 3.11 then reads the directory of an
    archive again for every package in it, thousands of names each time, although these archives never change. After
    each task, the worker collects garbage; modules loaded by now are excluded from that.
    """
    if zipimporter.invalidate_caches is _reread_archives:
        zipimporter.invalidate_caches = _unless_sparks_own  # type: ignore[method-assign, assignment]
        gc.collect()
        gc.freeze()


def _unless_sparks_own(finder: zipimporter) -> None:
    if not finder.archive.endswith(_SPARK_ARCHIVES):
        _reread_archives(finder)
