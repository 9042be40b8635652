"""From a store to Parquet, summary and report: the steps of a job in order."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from delaymq_spark.jobs import compaction, delay, settlements, summary, traffic
from delaymq_spark.jobs.running import (
    JobOptions,
    Progress,
    messages_of,
    read_store,
    skipped_of,
    write_summary,
    write_text,
)
from delaymq_spark.positions import Positions, read_positions

SECTIONS = {"compaction": ("compaction",), "delay": ("delay",), "traffic": ("traffic",),
            "report": ("compaction", "delay", "traffic")}  # fmt: skip
"""Which sections a job's summary has."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a job found."""

    summary: dict[str, Any]
    page: str | None
    """The HTML page, if it was wanted."""


@dataclass(frozen=True, slots=True)
class _Run:
    spark: SparkSession
    options: JobOptions
    positions: Positions
    messages: DataFrame
    complete: bool
    unread: frozenset[int]
    """Segments of which something was skipped."""
    kept: ExitStack

    def keep(self, frame: DataFrame) -> DataFrame:
        """The frame, computed once and kept for the readers after the first."""
        self.kept.callback(_let_go, frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    def save(self, frame: DataFrame, name: str) -> DataFrame:
        """The frame as it was written, or kept when nothing is written."""
        if self.options.out is None:
            return self.keep(frame)
        path = str(self.options.out / f"{name}.parquet")
        frame.write.mode("overwrite").parquet(path)
        return self.spark.read.parquet(path)


def steps_of(options: JobOptions) -> int:
    """How many steps `run_job` tells of."""
    return 1 + len(SECTIONS[options.job]) + options.page


def run_job(spark: SparkSession, options: JobOptions, progress: Progress) -> Result:
    """The summary; Parquet files, summary.json and the report are in `options.out` when this returns."""
    with ExitStack() as kept:
        return _run_job(spark, options, progress, kept)


def _run_job(spark: SparkSession, options: JobOptions, progress: Progress, kept: ExitStack) -> Result:
    began = time.monotonic()
    sections = SECTIONS[options.job]
    with progress.step("reading the log", spark):
        # Before the log, so that no position is ahead of what is seen of it.
        positions = read_positions(options.store)
        rows = read_store(spark, options, _columns(options, sections))
        kept.callback(_let_go, rows.persist(StorageLevel.MEMORY_AND_DISK))
        messages = messages_of(rows)
        totals = summary.totals(messages)
        tables = [each for each in positions.skipped if each.offset < 0]
        skipped = skipped_of(rows, tables, summary.MAX_SKIPPED)
    result = {**summary.head(options.job, positions, options.broker_name, options.as_of_ms, skipped), "totals": totals}
    run = _Run(spark, options, positions, messages, result["complete"], skipped.segments, kept)
    if "compaction" in sections:
        with progress.step("what is dead, and why", spark):
            result["compaction"] = _compaction(run)
    if "delay" in sections:
        with progress.step("how punctual the delays were", spark):
            delayed = run.save(delay.transform(messages, positions), "delay")
            promise = options.promise_p99_ms
            result["delay"] = summary.of_delay(delayed, options.as_of_ms, promise, result["complete"])
    if "traffic" in sections:
        with progress.step("what came in", spark):
            result["traffic"] = summary.of_traffic(messages, run.save(traffic.transform(messages), "traffic"))
    result["durationMs"] = round((time.monotonic() - began) * 1000)
    if options.out is not None:
        write_summary(options.out / "summary.json", result)
    page = None
    if options.page:
        with progress.step("drawing"):
            from delaymq_spark.report import render

            page = render(result)
            if options.out is not None:
                write_text(options.out / "report.html", page)
    return Result(result, page)


def _let_go(frame: DataFrame) -> None:
    # With a JVM that is gone everything is; the reason of that is what is to be told.
    with suppress(Py4JError, OSError):
        frame.unpersist()


def _compaction(run: _Run) -> dict[str, Any]:
    options = compaction.CompactionOptions(
        as_of_ms=run.options.as_of_ms,
        retention_hours=run.options.retention_hours,
        keyed_topics=run.options.keyed_topics,
        complete=run.complete,
    )
    rows = run.save(compaction.transform(run.messages, run.positions, options), "compaction")
    return summary.of_compaction(rows, run.positions, options, run.options.min_dead_ratio, run.unread)


def _columns(options: JobOptions, sections: tuple[str, ...]) -> tuple[str, ...]:
    """Only what the sections need: each column costs, those that need properties most."""
    wanted = dict.fromkeys(("topic", "size", "segment", "store_time"))
    if "compaction" in sections:
        wanted |= dict.fromkeys(compaction.COLUMNS)
        if options.keyed_topics:
            wanted["keys"] = None
    if "delay" in sections:
        wanted |= dict.fromkeys(settlements.COLUMNS)
    if "traffic" in sections:
        wanted |= dict.fromkeys(traffic.COLUMNS)
    return tuple(wanted)
