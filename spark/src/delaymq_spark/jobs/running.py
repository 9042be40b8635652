"""All of a job that is not pure: its session, what it reads and writes, and what it tells while it runs."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from delaymq.message.levels import DEFAULT_LEVELS
from delaymq.message.names import OP_HALF_TOPIC
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from delaymq_spark.segments import Skipped
from delaymq_spark.segments_plan import Part, plan
from delaymq_spark.source import FORMAT, register
from delaymq_spark.source_read import windows

DEFAULT_MEMORY = "2g"
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What every job is told."""

    job: str
    store: str
    as_of_ms: int
    out: Path | None = None
    """Where Parquet files, summary and report go; None: nowhere."""
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
    session = builder.getOrCreate()
    register(session)
    return session


def read_messages(spark: SparkSession, options: JobOptions, columns: tuple[str, ...]) -> DataFrame:
    """The store's messages with these columns."""
    return _load(spark, options, columns)


def read_operations(spark: SparkSession, options: JobOptions) -> DataFrame:
    """The op records of transactions: physical_offset, half_offset (null when the body is no number)."""
    records = _load(spark, options, ("physical_offset", "body"), topics=OP_HALF_TOPIC)
    return records.select("physical_offset", F.col("body").cast("string").try_cast("long").alias("half_offset"))


def _load(spark: SparkSession, options: JobOptions, columns: tuple[str, ...], **more: str) -> DataFrame:
    reader = spark.read.format(FORMAT).option("path", options.store).option("columns", ",".join(columns))
    reader = reader.option("delayLevels", options.delay_levels).option("splitBytes", str(options.split_bytes))
    for name, value in more.items():
        reader = reader.option(name, value)
    return reader.load()


def skipped_parts(spark: SparkSession, options: JobOptions) -> list[Skipped]:
    """What a read passes over, found by walking the log in parallel without making rows."""
    found = plan(options.store, options.split_bytes)
    told = list(found.skipped)
    if found.parts:
        told += spark.sparkContext.parallelize(found.parts, len(found.parts)).flatMap(_skipped_of).collect()
    return sorted(told, key=lambda each: (each.offset, each.file))


def _skipped_of(part: Part) -> Iterator[Skipped]:
    told: list[Skipped] = []
    for _ in windows(part, told.append):
        pass
    return iter(told)


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
