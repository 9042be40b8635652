"""Streams: one that survives a slow start, and one that reads all available messages and stops, like an hourly job."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_WAIT_LIMIT_S = 240
_LATE_PROCESS = "Python worker failed to connect back"
"""Spark's fixed limit for the start of a stream's Python process, ten seconds, is too low under load."""
_STARTS = 15


def begun(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query, and restart it from its checkpoint if its Python process was late."""
    for _ in range(_STARTS - 1):
        query = start()
        # A query that terminates logs this before it counts as inactive.
        while query.isActive and query.status["message"].startswith(("Initializing", "Terminated")):
            time.sleep(0.05)
        if query.isActive or _LATE_PROCESS not in str(query.exception()):
            return query
    return start()


def keys_streamed(spark: SparkSession, store: str, folder: Path, *, split_bytes: str) -> list[str]:
    """Read to the end of the log; return the keys of all messages read since `folder` was created, by offset."""

    def start() -> StreamingQuery:
        return (
            spark.readStream.format("rocketmq_store")
            .options(path=store, columns="keys,physical_offset", splitBytes=split_bytes)
            .load()
            .writeStream.format("parquet")
            .option("path", str(folder / "out"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    assert begun(start).awaitTermination(_WAIT_LIMIT_S)
    found = spark.read.parquet(str(folder / "out")).orderBy("physical_offset").collect()
    return [row["keys"] for row in found]
