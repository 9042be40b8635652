"""From a store to Parquet, summary and report: the steps of a job in order."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from delaymq.message.names import OP_HALF_TOPIC
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from delaymq_spark.jobs import compaction, delay, settlements, summary, traffic
from delaymq_spark.jobs.running import (
    JobOptions,
    Progress,
    read_messages,
    read_operations,
    skipped_parts,
    write_summary,
    write_text,
)
from delaymq_spark.positions import Positions, read_positions

SECTIONS = {"compaction": ("compaction",), "delay": ("delay",), "traffic": ("traffic",),
            "report": ("compaction", "delay", "traffic")}  # fmt: skip
"""Which sections a job's summary has."""


@dataclass(frozen=True, slots=True)
class _Run:
    spark: SparkSession
    options: JobOptions
    positions: Positions
    messages: DataFrame

    def save(self, frame: DataFrame, name: str) -> DataFrame:
        """The frame as it was written, or kept for the next reader when nothing is written."""
        if self.options.out is None:
            return frame.persist(StorageLevel.MEMORY_AND_DISK)
        path = str(self.options.out / f"{name}.parquet")
        frame.write.mode("overwrite").parquet(path)
        return self.spark.read.parquet(path)


def steps_of(job: str) -> int:
    """How many steps `run_job` tells of."""
    return 2 + len(SECTIONS[job]) + (job == "report")


def run_job(spark: SparkSession, options: JobOptions, progress: Progress) -> dict[str, Any]:
    """The summary; Parquet files, summary.json and the report are in `options.out` when this returns."""
    began = time.monotonic()
    sections = SECTIONS[options.job]
    with progress.step("looking for what cannot be read", spark):
        # Before the log, so that no position is ahead of what is seen of it.
        positions = read_positions(options.store)
        skipped = [*(each for each in positions.skipped if each.offset < 0), *skipped_parts(spark, options)]
        skipped = list(dict.fromkeys(skipped))
    result = summary.head(options.job, positions, options.as_of_ms, skipped)
    with progress.step("reading the log", spark):
        messages = read_messages(spark, options, _columns(options, sections)).persist(StorageLevel.MEMORY_AND_DISK)
        result["totals"] = summary.totals(messages)
    run = _Run(spark, options, positions, messages)
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
            rows = run.save(traffic.transform(messages), "traffic")
            result["traffic"] = summary.of_traffic(messages, rows)
    result["durationMs"] = round((time.monotonic() - began) * 1000)
    if options.out is not None:
        write_summary(options.out / "summary.json", result)
    if options.job == "report" and options.out is not None:
        with progress.step("drawing"):
            from delaymq_spark.report import render

            write_text(options.out / "report.html", render(result))
    messages.unpersist()
    return result


def _compaction(run: _Run) -> dict[str, Any]:
    options = compaction.CompactionOptions(
        as_of_ms=run.options.as_of_ms,
        retention_hours=run.options.retention_hours,
        keyed_topics=run.options.keyed_topics,
    )
    operations = None
    if not run.messages.where(run.messages["topic"] == OP_HALF_TOPIC).isEmpty():
        operations = read_operations(run.spark, run.options)
    rows = run.save(compaction.transform(run.messages, run.positions, options, operations), "compaction")
    return summary.of_compaction(rows, run.positions, options, run.options.min_dead_ratio)


def _columns(options: JobOptions, sections: tuple[str, ...]) -> tuple[str, ...]:
    """Only what the sections need: each column costs, those that need properties most."""
    wanted = dict.fromkeys(("topic", "size", "segment", "store_time"))
    if "compaction" in sections or "delay" in sections:
        wanted |= dict.fromkeys(settlements.COLUMNS)
    if "traffic" in sections:
        wanted |= dict.fromkeys(traffic.COLUMNS)
    if "compaction" in sections and options.keyed_topics:
        wanted["keys"] = None
    return tuple(wanted)
