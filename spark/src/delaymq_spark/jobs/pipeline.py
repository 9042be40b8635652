"""Execution of a job, from a store to Parquet files, summary and report: its stages as Spark RDDs."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext

from delaymq_spark.jobs import summary, tasks
from delaymq_spark.jobs.columns import columns_of
from delaymq_spark.jobs.compaction import CompactionOptions, Consumption
from delaymq_spark.jobs.facts import Facts
from delaymq_spark.jobs.results import Aggregates, part_name
from delaymq_spark.jobs.running import JobOptions, Progress, write_summary, write_text
from delaymq_spark.jobs.tasks import Item, TaskOptions
from delaymq_spark.planning.parts import Part, Plan, plan
from delaymq_spark.source.options import SourceOptions
from delaymq_spark.source.read import batches, log_skipped
from delaymq_spark.source.worker import skip_archive_rereads
from delaymq_spark.store.positions import read_positions
from delaymq_spark.store.segments import Skipped

SECTIONS: Final = {"compaction": ("compaction",), "delay": ("delay",), "traffic": ("traffic",),
                   "report": ("compaction", "delay", "traffic")}  # fmt: skip
"""Sections of each job's summary."""
_SETTLE_BYTES: Final = 64 << 20
"""Bytes of the log per task of the second stage. If all records have 180 bytes and keys, a task takes about 250 MiB."""
_MAX_SETTLE_TASKS: Final = 2_000
_SETTLED_BY_ADDED: Final = 8
"""Tasks of the second stage per task of the third: sums are far smaller than records."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a job."""

    summary: dict[str, Any]
    page: str | None
    """The HTML page, if requested."""


def steps_of(options: JobOptions) -> int:
    """Return the number of steps that `run_job` reports."""
    return 2 + options.page


def run_job(spark: SparkContext, options: JobOptions, progress: Progress) -> Result:
    """Run a job and return its summary; it writes Parquet files, summary.json and the report to `options.out`."""
    began = time.monotonic()
    sections = SECTIONS[options.job]
    with progress.step("reading the log", spark):
        # Read before the log, so that no position is ahead of it.
        positions = read_positions(options.store)
        found = plan(options.store, options.split_bytes)
        task_options = _task_options(options, found, Consumption.of(positions))
        source = SourceOptions(
            paths=(options.store,),
            columns=columns_of(sections, keyed=bool(options.keyed_topics)),
            delay_levels=options.delay_levels,
        )
        stages = Stages(spark, found, source, task_options)
        progress.check()
        facts = stages.facts()
        for skipped in dict.fromkeys((*(each for each in positions.skipped if each.offset < 0), *found.skipped)):
            facts.skipped.note(skipped)
    with progress.step("adding up", spark):
        aggregates = stages.aggregates(facts)
        if options.out is not None:
            _check_shared(options.out, sections)
    complete = facts.skipped.complete
    result = {
        **summary.head(options.job, positions, options.broker_name, options.as_of_ms, facts.skipped),
        "totals": summary.totals(aggregates),
    }
    if "compaction" in sections:
        result["compaction"] = summary.of_compaction(
            aggregates, positions, task_options.compaction, options.min_dead_ratio, facts.skipped.segments
        )
    if "delay" in sections:
        result["delay"] = summary.of_delay(aggregates, options.as_of_ms, options.promise_p99_ms, complete)
    if "traffic" in sections:
        result["traffic"] = summary.of_traffic(aggregates)
    result["durationMs"] = round((time.monotonic() - began) * 1000)
    if options.out is not None:
        write_summary(options.out / "summary.json", result)
    page = None
    if options.page:
        with progress.step("drawing"):
            from delaymq_spark.report.page import render

            page = render(result)
            if options.out is not None:
                write_text(options.out / "report.html", page)
    progress.check()
    return Result(result, page)


class Stages:
    """The three stages of `tasks` over the parts of a plan."""

    def __init__(self, spark: SparkContext, found: Plan, source: SourceOptions, task_options: TaskOptions) -> None:
        self._spark = spark
        self._task_options = task_options
        for skipped in found.skipped:
            log_skipped(skipped)
        if task_options.out is not None:
            for section in task_options.sections:
                shutil.rmtree(task_options.out / f"{section}.parquet", ignore_errors=True)
        parts = spark.parallelize(found.parts, max(1, len(found.parts)))
        taken = parts.mapPartitions(partial(_classify, source, task_options)).partitionBy(
            task_options.settle_tasks, int
        )
        settled = taken.mapPartitionsWithIndex(partial(_settle, task_options))
        # Computed once: the second job reuses the data that Spark shuffled for the first.
        self._sums = settled.partitionBy(task_options.add_tasks + 1, int)

    def facts(self) -> Facts:
        """Run the first two stages."""
        return Facts.merged(self._spark.runJob(self._sums, _values, [self._task_options.add_tasks]))

    def aggregates(self, facts: Facts) -> Aggregates:
        """Run the third stage."""
        aggregates = self._sums.mapPartitionsWithIndex(partial(_aggregate, self._task_options, facts))
        return Aggregates.merged(self._spark.runJob(aggregates, list, range(self._task_options.add_tasks)))


def _check_shared(out: Path, sections: Iterable[str]) -> None:
    """Raise FileNotFoundError if executors wrote to their own disk."""
    for section in sections:
        part = out / f"{section}.parquet" / part_name(0)
        if not part.exists():
            text = (
                "the executors wrote it to another file system: --out must be on a file system that they share with "
                "the driver"
            )
            raise FileNotFoundError(errno.ENOENT, text, str(part))


def _task_options(options: JobOptions, found: Plan, consumption: Consumption) -> TaskOptions:
    log_bytes = sum(part.bytes_count for part in found.parts)
    settle_tasks = min(max(1, -(-log_bytes // _SETTLE_BYTES)), _MAX_SETTLE_TASKS)
    return TaskOptions(
        sections=frozenset(SECTIONS[options.job]),
        compaction=CompactionOptions(
            as_of_ms=options.as_of_ms, retention_hours=options.retention_hours, keyed_topics=options.keyed_topics
        ),
        consumption=consumption,
        settle_tasks=settle_tasks,
        add_tasks=-(-settle_tasks // _SETTLED_BY_ADDED),
        out=options.out,
    )


def _classify(source: SourceOptions, task_options: TaskOptions, parts: Iterable[Part]) -> Iterator[Item]:
    skip_archive_rereads()
    for part in parts:
        facts = Facts()
        yield from tasks.classify(batches(part, source, partial(_note_skipped, facts)), task_options, facts)


def _note_skipped(facts: Facts, skipped: Skipped) -> None:
    log_skipped(skipped)
    facts.skipped.note(skipped)


def _settle(task_options: TaskOptions, number: int, items: Iterable[Item]) -> Iterator[Item]:
    skip_archive_rereads()
    return tasks.settle((value for _, value in items), task_options, number)


def _aggregate(task_options: TaskOptions, facts: Facts, number: int, items: Iterable[Item]) -> Iterator[Aggregates]:
    skip_archive_rereads()
    yield tasks.aggregate((value for _, value in items), task_options, facts, number)


def _values(items: Iterable[Item]) -> Iterator[Facts]:
    return (value for _, (_, value) in items)
