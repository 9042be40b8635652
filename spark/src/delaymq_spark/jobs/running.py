"""Environment of a job: options, Spark context, written files, and progress output."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from delaymq.message.levels import DEFAULT_LEVELS
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext

DEFAULT_MEMORY = "2g"
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""JVM options: Python reads and computes, and the JVM only moves packed data, which does not justify compilation."""
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options of every job."""

    job: str
    store: str
    as_of_ms: int
    out: Path | None = None
    """Directory of Parquet files, summary and report; None: nothing is written."""
    page: bool = False
    """Whether to create the HTML page."""
    broker_name: str | None = None
    """Name reported by the broker; None for a directory."""
    delay_levels: str = DEFAULT_LEVELS
    """Delay level table of the broker, for delayed records without a due time."""
    retention_hours: float = 72
    keyed_topics: frozenset[str] = field(default_factory=frozenset)
    min_dead_ratio: float = 0.25
    promise_p99_ms: int = 100
    split_bytes: int = 128 << 20
    master: str | None = None
    """Spark master; None: that of spark-submit, else all processors of this machine."""
    memory: str = DEFAULT_MEMORY


def open_context(options: JobOptions) -> SparkContext:
    """Return a local context, or the one configured by spark-submit or the Spark operator."""
    conf = SparkConf().setAppName(f"delaymq-spark {options.job}")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if options.master is not None or not submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Otherwise Spark listens on the address of the machine's host name, and logs a warning about it.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Options of the launcher JVM, which only assembles the command line of the driver's JVM.
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", JVM_OPTIONS)
        conf.setMaster(options.master or "local[*]").setAll(
            [
                ("spark.driver.memory", options.memory),
                ("spark.driver.extraJavaOptions", JVM_OPTIONS),
                ("spark.ui.enabled", "false"),
                ("spark.ui.showConsoleProgress", "false"),
                ("spark.log.level", "ERROR"),
                ("spark.driver.bindAddress", "127.0.0.1"),
                ("spark.driver.host", "127.0.0.1"),
            ]
        )
    return SparkContext.getOrCreate(conf)


@contextmanager
def context(options: JobOptions) -> Iterator[SparkContext]:
    """Use `open_context` for the duration of a job; an existing context is kept afterwards."""
    given = SparkContext._active_spark_context is not None
    spark = open_context(options)
    try:
        yield spark
    finally:
        if not given:
            # A JVM that has exited cannot be stopped: the earlier error is the one to report.
            with suppress(Py4JError, OSError):
                spark.stop()


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Write the summary as indented JSON."""
    write_text(path, json.dumps(summary, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def has_plots() -> bool:
    """Return whether the plotting library is installed."""
    return importlib.util.find_spec("matplotlib") is not None


class Progress:
    """Reports the current step on a stream and, on a terminal, the number of finished tasks."""

    def __init__(self, stream: IO[str], steps: int, check: Callable[[], None] = lambda: None) -> None:
        self._stream = stream
        self._steps = steps
        self._number = 0
        self.check = check
        """Raises if the job is to stop; called before long operations."""
        self._is_terminal = stream.isatty()

    @contextmanager
    def step(self, what: str, spark: SparkContext | None = None) -> Iterator[None]:
        """Report a step for the duration of the block."""
        self.check()
        self._number += 1
        title = f"[{self._number}/{self._steps}] {what}"
        if not self._is_terminal or spark is None:
            print(title, file=self._stream, flush=True)
            yield
            return
        with _Ticker(self._stream, title, spark):
            yield


class _Ticker:
    """A thread that shows the tasks of running stages on one line."""

    def __init__(self, stream: IO[str], title: str, spark: SparkContext) -> None:
        self._stream = stream
        self._title = title
        self._status = spark.statusTracker()
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
