"""The stages of a job, run sequentially and without Spark: lists replace its shuffles."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from delaymq_spark.jobs import tasks
from delaymq_spark.jobs.compaction import CompactionOptions, Consumption
from delaymq_spark.jobs.facts import Facts, SkippedParts
from delaymq_spark.jobs.results import Aggregates
from delaymq_spark.jobs.tasks import TaskOptions
from delaymq_spark.store.positions import Positions
from delaymq_spark.store.segments import Skipped

SECTIONS = frozenset({"compaction", "delay", "traffic"})


@dataclass(frozen=True)
class Cluster:
    """Number of tasks of each stage."""

    takes: int = 1
    settles: int = 1
    adds: int = 1


ONE = Cluster()
MANY = Cluster(takes=3, settles=5, adds=2)


def run_stages(
    messages: pa.Table,
    positions: Positions,
    options: CompactionOptions,
    *,
    cluster: Cluster = ONE,
    sections: frozenset[str] = SECTIONS,
    out: Path | None = None,
    skipped: Sequence[Skipped] = (),
) -> Aggregates:
    """Return the result of the third stage for the rows `messages`."""
    task_options = TaskOptions(
        sections=sections, compaction=options, consumption=Consumption.of(positions), settle_tasks=cluster.settles,
        add_tasks=cluster.adds, out=out,
    )  # fmt: skip
    first: dict[int, list[Any]] = defaultdict(list)
    rows = -(-max(messages.num_rows, 1) // cluster.takes)
    for number in range(cluster.takes):
        told = SkippedParts()
        for each in skipped if number == 0 else ():
            told.note(each)
        part = messages.slice(number * rows, rows).to_batches(max_chunksize=100)
        for place, value in tasks.classify(part, task_options, Facts(skipped=told)):
            first[place].append(pickle.dumps(value))
    assert all(0 <= place < cluster.settles for place in first)
    second: dict[int, list[Any]] = defaultdict(list)
    for number in range(cluster.settles):
        for place, value in tasks.settle(map(pickle.loads, first[number]), task_options, number):
            second[place].append(pickle.dumps(value))
    facts = Facts.merged(pickle.loads(each)[1] for each in second.pop(cluster.adds, []))
    assert all(0 <= place < cluster.adds for place in second)
    aggregates = [
        tasks.aggregate(map(pickle.loads, second[number]), task_options, facts, number)
        for number in range(cluster.adds)
    ]
    return Aggregates.merged(pickle.loads(pickle.dumps(aggregates)))


def reasons(messages: pa.Table, positions: Positions, options: CompactionOptions, **more: Any) -> dict[int, str]:
    """Return the reason of each record by physical offset; each record gets a separate segment."""
    at = messages.column_names.index("segment")
    alone = messages.set_column(at, "segment", messages["physical_offset"])
    found = run_stages(alone, positions, options, sections=frozenset({"compaction"}), **more).rows("reasons")
    assert all(row["messages"] == 1 for row in found)
    assert len({row["segment"] for row in found}) == len(found)
    return {row["segment"]: row["reason"] for row in found}


def table(out: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file that the tasks wrote."""
    rows: list[dict[str, Any]] = pq.read_table(out / f"{name}.parquet").to_pylist()
    return rows


def shuffled(messages: pa.Table, seed: int) -> pa.Table:
    """Return the rows in a different order, as if tasks had finished in a different order."""
    return messages.take(pa.array(np.random.default_rng(seed).permutation(messages.num_rows)))
