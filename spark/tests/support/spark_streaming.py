"""A stream that is started, reads what there is, and stops: as a job of every hour would."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

_WAIT_LIMIT_S = 120


def keys_streamed(spark: SparkSession, store: str, folder: Path, *, split_bytes: str) -> list[str]:
    """Goes on to the log's end; then the keys of all messages that came since `folder` was new, by their offset."""
    query = (
        spark.readStream.format("rocketmq_store")
        .options(path=store, columns="keys,physical_offset", splitBytes=split_bytes)
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(_WAIT_LIMIT_S)
    found = spark.read.parquet(str(folder / "out")).orderBy("physical_offset").collect()
    return [row["keys"] for row in found]
