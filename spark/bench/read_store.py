"""How fast the data source reads a store: rows and bytes a second of one core, beside a plain Python reader.

    python spark/bench/read_store.py STORE [--spark]

Without Spark: the data source's own code, by CPU time, since other work on the machine would spoil the wall's. With
--spark: the whole query in a local Spark with one core, by the wall clock, after one run that warms the JVM. Ratios are
to the plain reader of the same store in the same run. The store is read once first, so that it is in the page cache.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from delaymq.store.reader import StoreReader
from delaymq_spark.segments_plan import plan
from delaymq_spark.source_options import SourceOptions
from delaymq_spark.source_read import batches
from delaymq_spark.source_schema import DEFAULT_COLUMNS

SCENARIOS = {
    "topic, size": ("topic", "size"),
    "default columns": DEFAULT_COLUMNS,
    "with properties": ("topic", "size", "properties"),
    "with body": ("topic", "size", "body"),
}
REPETITIONS = 3


@dataclass(frozen=True)
class Figure:
    """One measurement: the best of its repetitions."""

    rows: int
    log_bytes: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    def line(self, name: str, base: Figure) -> str:
        mb_per_s = self.log_bytes / self.seconds / 1e6
        ratio = self.rows_per_s / base.rows_per_s
        return f"{name:32} {self.rows_per_s:12,.0f} rows/s {mb_per_s:8,.0f} MB/s {ratio:6.1f}×"


def best(run: Callable[[], tuple[int, int]], clock: Callable[[], float]) -> Figure:
    figures = []
    for _ in range(REPETITIONS):
        begin = clock()
        rows, log_bytes = run()
        figures.append(Figure(rows, log_bytes, clock() - begin))
    return min(figures, key=lambda figure: figure.seconds)


def plain(path: str, *, properties: bool) -> tuple[int, int]:
    """Count and sum by topic with the broker's own reader."""
    totals: dict[str, list[int]] = {}
    for record in StoreReader(path).records(check_crc=False):
        total = totals.setdefault(record.topic, [0, 0])
        total[0] += 1
        total[1] += record.size
        if properties:
            len(record.properties)
    return sum(total[0] for total in totals.values()), sum(total[1] for total in totals.values())


def source(path: str, columns: tuple[str, ...]) -> tuple[int, int]:
    """All batches, made and dropped."""
    options = SourceOptions(path=path, columns=columns)
    found = plan(path, options.split_bytes)
    rows = sum(batch.num_rows for part in found.parts for batch in batches(part, options))
    return rows, sum(part.bytes_count for part in found.parts)


def cat(path: str) -> tuple[int, int]:
    """The disk's, or page cache's, own speed."""
    total, buffer = 0, bytearray(1 << 20)
    for part in plan(path, 1 << 40).parts:
        with open(part.segment.path, "rb", buffering=0) as file:
            left = part.bytes_count
            while left > 0 and (count := file.readinto(memoryview(buffer)[: min(left, len(buffer))])):
                left -= count
                total += count
    return 1, total


def spark_queries(path: str) -> Iterator[tuple[str, Callable[[], tuple[int, int]]]]:
    from delaymq_spark import register
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    values = {"properties": F.sum(F.size("properties")), "body": F.sum(F.length("body"))}
    for name, columns in SCENARIOS.items():
        extra = [values[column] for column in columns if column in values]

        def run(columns: tuple[str, ...] = columns, extra: list[Any] = extra) -> tuple[int, int]:
            frame = spark.read.format("rocketmq_store").option("path", path).option("columns", ",".join(columns)).load()
            rows = frame.groupBy("topic").agg(F.count("*"), F.sum("size"), *extra).collect()
            return sum(row[1] for row in rows), sum(row[2] for row in rows)

        run()
        yield name, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("--spark", action="store_true")
    arguments = parser.parse_args()
    cat(arguments.store)
    clock = time.perf_counter if arguments.spark else time.process_time
    base = best(lambda: plain(arguments.store, properties=False), clock)
    print(base.line("plain reader", base))
    print(best(lambda: plain(arguments.store, properties=True), clock).line("plain reader, properties", base))
    whole = best(lambda: cat(arguments.store), clock)
    print(f"{'read into a buffer':32} {'':19} {whole.log_bytes / whole.seconds / 1e6:8,.0f} MB/s")
    if arguments.spark:
        for name, run in spark_queries(arguments.store):
            print(best(run, clock).line(f"Spark: {name}", base))
        return
    for name, columns in SCENARIOS.items():
        print(best(lambda columns=columns: source(arguments.store, columns), clock).line(name, base))  # type: ignore[misc]
    print(f"largest resident size: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
