"""One measurement in a separate process, so that measurements do not affect each other; prints JSON on the last line.

    python spark/bench/measure.py KIND STORE CORES

KIND: `cat`, `plain`, `scan:COLUMNS`, `spark:COLUMNS`, `report`. run.py starts it, pinned to CORES processors.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from delaymq.store.reader import StoreReader
from delaymq_spark.planning.parts import plan
from delaymq_spark.source.options import parse_options
from delaymq_spark.source.read import batches
from processes import Usage, Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPETITIONS: Final = 3
SPARK_RUNS: Final = 4
"""Number of runs in one JVM; the first ones include compilation."""
JVM_MEMORY: Final = "1g"


@dataclass(kw_only=True)
class Measured:
    """Best of the repetitions; processor seconds are the user and system time of all processes."""

    rows: int
    log_bytes: int
    processor_s: float
    wall_s: float
    python_s: float = 0.0
    jvm_s: float = 0.0
    """Without its compilers."""
    compiler_s: float = 0.0
    peak_jvm_mib: int = 0
    peak_python_mib: int = 0


def repeated(run: Callable[[], tuple[int, int]]) -> Measured:
    """Return the best run, by processor time of this process and its children."""
    found = []
    for _ in range(REPETITIONS):
        before, began = _own_seconds(), time.perf_counter()
        rows, log_bytes = run()
        seconds, wall = _own_seconds() - before, time.perf_counter() - began
        found.append(Measured(rows=rows, log_bytes=log_bytes, processor_s=seconds, wall_s=wall, python_s=seconds))
    best = min(found, key=lambda each: each.processor_s)
    best.peak_python_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return best


def _own_seconds() -> float:
    usages = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def cat(store: str) -> tuple[int, int]:
    """Read the log's files with `cat`: the minimum cost of reading."""
    files = sorted((Path(store) / "commitlog").iterdir())
    subprocess.run(["cat", *map(str, files)], stdout=subprocess.DEVNULL, check=True)
    return 0, sum(file.stat().st_size for file in files)


def plain(store: str) -> tuple[int, int]:
    """Compute count and sum of sizes by topic with the broker's own reader, which makes an object for each message."""
    totals: dict[str, list[int]] = {}
    for record in StoreReader(store).records(check_crc=False):
        total = totals.setdefault(record.topic, [0, 0])
        total[0] += 1
        total[1] += record.size
    return sum(each[0] for each in totals.values()), sum(each[1] for each in totals.values())


def scan(store: str, columns: str) -> tuple[int, int]:
    """Create and discard all batches of the data source, without Spark."""
    options = parse_options({"path": store, "columns": columns})
    parts = plan(options.path, options.split_bytes).parts
    rows = sum(batch.num_rows for part in parts for batch in batches(part, options))
    return rows, sum(part.bytes_count for part in parts)


def spark(store: str, columns: str, cores: int) -> Measured:
    """Compute count and sums by topic in a local Spark with `cores` cores, after the JVM has compiled the query."""
    from pyspark.sql import functions as F  # noqa: N812

    watch, session = Watch(), _session(cores)
    sums = {"properties": F.sum(F.size("properties")), "body": F.sum(F.length("body"))}
    extra = [sums[name] for name in columns.split(",") if name in sums]
    found = []
    for _ in range(SPARK_RUNS):
        before, began = watch.usage(), time.perf_counter()
        frame = session.read.format("rocketmq_store").options(path=store, columns=columns).load()
        totals = frame.groupBy("topic").agg(F.count("*"), F.sum("size"), *extra).collect()
        used, wall = watch.usage().since(before), time.perf_counter() - began
        found.append(_of_spark(sum(row[1] for row in totals), sum(row[2] for row in totals), used, wall))
    best = min(found, key=lambda each: each.processor_s)
    best.peak_jvm_mib, best.peak_python_mib = watch.peaks()
    session.stop()
    return best


def report(store: str, cores: int) -> Measured:
    """Run all of `delaymq-spark report`, including the start of the JVM."""
    watch, began = Watch(), time.perf_counter()
    program = Path(sys.executable).with_name("delaymq-spark")
    with tempfile.TemporaryDirectory(prefix="delaymq-bench-") as out:
        command = [str(program), "report", "--store", store, "--out", out, "--master", f"local[{cores}]"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        totals = json.loads((Path(out) / "summary.json").read_text())["totals"]
    measured = _of_spark(totals["messages"], totals["bytes"], watch.usage(), time.perf_counter() - began)
    measured.peak_jvm_mib, measured.peak_python_mib = watch.peaks()
    return measured


def _of_spark(rows: int, log_bytes: int, used: Usage, wall_s: float) -> Measured:
    return Measured(
        rows=rows, log_bytes=log_bytes, processor_s=used.jvm_s + used.python_s, wall_s=wall_s,
        python_s=used.python_s, jvm_s=used.jvm_s - used.compiler_s, compiler_s=used.compiler_s,
    )  # fmt: skip


def _session(cores: int) -> SparkSession:
    from delaymq_spark import register
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.memory": JVM_MEMORY,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local[{cores}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


def main() -> None:
    """Run the measurement that the arguments select."""
    kind, store, cores = sys.argv[1], sys.argv[2], int(sys.argv[3])
    name, _, columns = kind.partition(":")
    if name == "spark":
        measured = spark(store, columns, cores)
    elif name == "report":
        measured = report(store, cores)
    else:
        runs: dict[str, Callable[[], tuple[int, int]]] = {
            "cat": lambda: cat(store), "plain": lambda: plain(store), "scan": lambda: scan(store, columns),
        }  # fmt: skip
        measured = repeated(runs[name])
    print(json.dumps(asdict(measured)))


if __name__ == "__main__":
    main()
