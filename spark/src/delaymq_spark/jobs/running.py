"""All of a job that is not pure: its session, what it reads and writes, and what it tells while it runs."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from delaymq.message.levels import DEFAULT_LEVELS
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from delaymq_spark.jobs.summary import SkippedParts
from delaymq_spark.segments import Skipped, list_segments
from delaymq_spark.source import FORMAT, register

DEFAULT_MEMORY = "2g"
# A job makes some twenty plans and runs each once. On a log that is not larger (the newest file and the one before, as
# brokers allocate them) to compile them well takes longer than to run them.
SMALL_LOG_BYTES = 2 << 30
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What every job is told."""

    job: str
    store: str
    as_of_ms: int
    out: Path | None = None
    """Where Parquet files, summary and report go; None: nowhere."""
    page: bool = False
    """Whether the HTML page is made."""
    broker_name: str | None = None
    """As the broker says; None where there is only a folder."""
    delay_levels: str = DEFAULT_LEVELS
    """The level table of the broker, for delayed records that state no due time."""
    retention_hours: float = 72
    keyed_topics: frozenset[str] = field(default_factory=frozenset)
    min_dead_ratio: float = 0.25
    promise_p99_ms: int = 100
    split_bytes: int = 128 << 20
    master: str | None = None
    """None: what spark-submit says, else all processors of this machine."""
    memory: str = DEFAULT_MEMORY


def open_session(options: JobOptions) -> SparkSession:
    """A session of this machine's own, or the one that spark-submit or the Spark operator configured."""
    builder = SparkSession.builder.appName(f"delaymq-spark {options.job}").config("spark.sql.session.timeZone", "UTC")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if options.master is not None or not submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Else Spark listens on, and warns of, whatever address the machine's name has.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = (
            builder.master(options.master or "local[*]")
            .config("spark.driver.memory", options.memory)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            # Small stores must not wait for two hundred empty tasks; large ones are split by the source.
            .config("spark.sql.shuffle.partitions", str(max(4, 2 * (os.cpu_count() or 1))))
        )
        if sum(info.file_bytes for info in list_segments(options.store).segments) <= SMALL_LOG_BYTES:
            builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    session = builder.getOrCreate()
    # It writes errors with all stack traces of both languages, beside raising them.
    PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel("CRITICAL")
    register(session)
    return session


@contextmanager
def session(options: JobOptions) -> Iterator[SparkSession]:
    """`open_session` for the time of a job; whoever had a session before keeps it."""
    given = SparkSession.getActiveSession() is not None
    spark = open_session(options)
    try:
        yield spark
    finally:
        if not given:
            # A JVM that is gone cannot be stopped: what happened before is what is to be told.
            with suppress(Py4JError, OSError):
                spark.stop()


def read_store(spark: SparkSession, options: JobOptions, columns: tuple[str, ...]) -> DataFrame:
    """The store's messages with these columns, and what was passed over: `messages_of` and `skipped_of` take it apart.

    One read: the log may be larger than any memory, and far away.
    """
    reader = spark.read.format(FORMAT).option("path", options.store)
    reader = reader.option("columns", ",".join((*columns, "skipped")))
    reader = reader.option("delayLevels", options.delay_levels).option("splitBytes", str(options.split_bytes))
    return reader.load()


def messages_of(rows: DataFrame) -> DataFrame:
    """The messages among the rows of `read_store`."""
    return rows.where(F.col("skipped").isNull())


def skipped_of(rows: DataFrame, beside_log: Sequence[Skipped], limit: int) -> SkippedParts:
    """What the read passed over, and what of the store's tables was not read (each is counted once)."""
    schema = "file string, position long, offset long, lostBytes long, reason string, atEnd boolean"
    found = rows.where(F.col("skipped").isNotNull()).select(F.from_json("skipped", schema).alias("s")).select("s.*")
    if beside_log:
        tables = [(s.file, s.position, s.offset, s.lost_bytes, s.reason, s.at_end) for s in beside_log]
        found = found.unionByName(rows.sparkSession.createDataFrame(tables, schema))
    # In a store that goes wrong everywhere there may be more than fit in the driver.
    found = found.distinct().persist(StorageLevel.MEMORY_AND_DISK)
    try:
        segment = F.when(F.col("offset") >= 0, F.col("offset") - F.col("position"))
        lost = (
            found.where(~F.col("atEnd"))
            .agg(F.count("*"), F.coalesce(F.sum("lostBytes"), F.lit(0)), F.collect_set(segment))
            .collect()[0]
        )
        first = found.orderBy("atEnd", "offset", "file", "position").limit(limit).collect()
    finally:
        found.unpersist()
    return SkippedParts(lost[0], lost[1], tuple(Skipped(*row) for row in first), frozenset(lost[2]))


def write_text(path: Path, text: str) -> None:
    """The whole file or none of it."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """The summary as indented JSON."""
    write_text(path, json.dumps(summary, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def has_plots() -> bool:
    """Whether the library that draws is installed."""
    return importlib.util.find_spec("matplotlib") is not None


class Progress:
    """Says on a stream which step runs and, on a terminal, how many of its tasks are done."""

    def __init__(self, stream: IO[str], steps: int) -> None:
        self._stream = stream
        self._steps = steps
        self._number = 0
        self._is_terminal = stream.isatty()

    @contextmanager
    def step(self, what: str, spark: SparkSession | None = None) -> Iterator[None]:
        """One step, from here to the block's end."""
        self._number += 1
        title = f"[{self._number}/{self._steps}] {what}"
        if not self._is_terminal or spark is None:
            print(title, file=self._stream, flush=True)
            yield
            return
        with _Ticker(self._stream, title, spark):
            yield


class _Ticker:
    """A thread that shows the tasks of the running stages in one line."""

    def __init__(self, stream: IO[str], title: str, spark: SparkSession) -> None:
        self._stream = stream
        self._title = title
        self._status = spark.sparkContext.statusTracker()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._stream.write(self._title)
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self._stream.write(f"\r\x1b[K{self._title}\n")
        self._stream.flush()

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_SECONDS):
            done = whole = 0
            for stage in self._status.getActiveStageIds():
                info = self._status.getStageInfo(stage)
                if info is not None:
                    done, whole = done + info.numCompletedTasks, whole + info.numTasks
            self._stream.write(f"\r\x1b[K{self._title}" + (f": {done} of {whole} tasks" if whole else ""))
            self._stream.flush()
