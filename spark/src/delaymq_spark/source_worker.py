"""What is special about the Python process in which Spark runs a read."""

from __future__ import annotations

import sys
from zipimport import zipimporter

# pyspark and py4j, as Spark's own folder has them.
_SPARK_ARCHIVES = ("pyspark.zip", "-src.zip")


def keep_archive_directories() -> None:
    """Spare the next tasks of this process some tenths of a second each.

    Before each task Spark's worker calls `importlib.invalidate_caches()`, and Python 3.11 then reads the directory of
    the archive anew for every package in it, thousands of names each time, of archives that never change. What is
    forgotten here is not called; the next import that needs an archive finds its directory in zipimport's own cache.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and finder.archive.endswith(_SPARK_ARCHIVES):
            del sys.path_importer_cache[path]
