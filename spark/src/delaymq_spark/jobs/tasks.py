"""The three stages of a job as functions over tables, independent of Spark.

1. `classify` scans a part of the log once. It yields sums of records that can be judged alone, and the records that
   depend on others (delayed records and their copies, half messages and their ends, equal keys).
2. `settle` gets all related records in one partition, and turns them into sums, too.
3. `aggregate` adds all sums of some topics. The result is small, and the driver derives the summary from it.

Stages pass items on to the next stage: the number of its partition and the content, a name and a packed table. `Facts`
go to a separate partition of the third stage, after all others. It is computed first, since the others need it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from delaymq.message.names import HALF_TOPIC, MARKS_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

from delaymq_spark.jobs import compaction, delay, settlements, traffic
from delaymq_spark.jobs.claims import (
    CHANGES,
    CLAIMS,
    ORIGINS,
    changes_of,
    claims_of,
    may_settle,
    origins_of,
    places_of,
    takeovers_of,
)
from delaymq_spark.jobs.columns import (
    Integers,
    Mask,
    chunks,
    is_filler,
    is_topic,
    mask_of,
    pack,
    place_of_integers,
    place_of_texts,
    place_of_topics,
    scattered,
    unpack,
    where,
)
from delaymq_spark.jobs.compaction import BREAKDOWN, NAMED, PROOFS, CompactionOptions, Consumption
from delaymq_spark.jobs.delay import COMING, FATES, HISTOGRAM, POINTS, WAITING
from delaymq_spark.jobs.facts import Facts
from delaymq_spark.jobs.results import MAX_ROWS, Aggregates, write_part
from delaymq_spark.jobs.sums import Sums
from delaymq_spark.jobs.traffic import HOT_KEYS, SIZES, TRAFFIC, VOLUME

Item = tuple[int, tuple[str, Any]]

FACTS: Final = "facts"
ALL_SUMS: Final = {
    each.name: each
    for each in (VOLUME, TRAFFIC, SIZES, HOT_KEYS, BREAKDOWN, PROOFS, NAMED, FATES, POINTS, HISTOGRAM, WAITING, COMING)
}
_MEET: Final = {
    "origins": ORIGINS,
    "claims": CLAIMS,
    "changes": CHANGES,
    "halves": compaction.HALVES,
    "ended": pa.schema([("half_offset", pa.int64())]),
    "keyed": compaction.KEYED,
}
"""Tables combined in the second stage."""
_MAX_SUM_ROWS: Final = 131_072
"""Sums are added up when they have more rows than this, and emitted if more rows than this remain."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Settings of every task; small, since each gets a copy."""

    sections: frozenset[str]
    compaction: CompactionOptions
    consumption: Consumption
    settle_tasks: int = 1
    """Number of partitions of the second stage."""
    add_tasks: int = 1
    """Number of partitions of the third stage, without that of the facts."""
    out: Path | None = None
    """Directory to which tasks write their parts of the Parquet files."""

    @property
    def has_delays(self) -> bool:
        """Whether delayed records are matched with their settlements."""
        return not self.sections.isdisjoint(("compaction", "delay"))


@dataclass(slots=True)
class _SumBuffer:
    """Sums of a task until they are emitted."""

    of: Sums
    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    limit: int = _MAX_SUM_ROWS

    def add(self, table: pa.Table) -> None:
        if table.num_rows:
            self.tables.append(table)
            self.rows += table.num_rows
            if self.rows > self.limit:
                self.tables = [self.of.add(self.tables)]
                self.rows = self.tables[0].num_rows
                # If the rows have few keys in common, do not add up again for each further table.
                self.limit = max(_MAX_SUM_ROWS, 2 * self.rows)

    def taken(self) -> pa.Table:
        table, self.tables, self.rows, self.limit = self.of.add(self.tables), [], 0, _MAX_SUM_ROWS
        return table


def classify(
    batches: Iterable[pa.RecordBatch], task_options: TaskOptions, facts: Facts | None = None
) -> Iterator[Item]:
    """Run the first stage: return the items of a part of the log, with the columns of `columns.columns_of`.

    `facts`: facts recorded by the reader of the part.
    """
    facts = Facts() if facts is None else facts
    buffers = {name: _SumBuffer(each) for name, each in ALL_SUMS.items()}
    for rows in chunks(batches):
        buffers["volume"].add(traffic.volume(rows))
        if "traffic" in task_options.sections:
            buffers["traffic"].add(traffic.rates(rows))
            buffers["sizes"].add(traffic.sizes(rows))
            # Most keys occur once, so buffering them would save nothing.
            yield from _items("hot_keys", traffic.keys(rows), task_options)
        yield from _of_records(rows, task_options, buffers, facts)
        for name, each in buffers.items():
            if each.rows > _MAX_SUM_ROWS:
                yield from _items(name, each.taken(), task_options)
    for name, each in buffers.items():
        yield from _items(name, each.taken(), task_options)
    yield 0, (FACTS, facts)


def _of_records(
    rows: pa.Table, task_options: TaskOptions, buffers: dict[str, _SumBuffer], facts: Facts
) -> Iterator[Item]:
    """Yield the items of records for compaction and delays."""
    if not task_options.has_delays:
        return
    filler = is_filler(rows)
    timed = is_topic(rows, TIMER_TOPIC) & ~filler
    delayed = is_topic(rows, SCHEDULE_TOPIC) & ~filler
    facts.note_delayed(where(rows, delayed))
    facts.note_timed(where(rows, timed))
    delayed |= timed
    yield from _items("origins", origins_of(where(rows, delayed)), task_options)
    others = where(rows, ~delayed & ~filler)
    removable = np.zeros(others.num_rows, np.bool_)
    if "compaction" in task_options.sections:
        buffers["compaction"].add(compaction.of_reason(where(rows, filler), "filler"))
        removable = yield from _classified(others, task_options, buffers, facts)
    changes = changes_of(where(others, is_topic(others, MARKS_TOPIC)))
    if changes.num_rows:
        for place in range(task_options.settle_tasks):
            yield place, ("changes", pack(changes))
    claims = may_settle(others)
    yield from _items("claims", claims_of(where(others, claims), removable[claims]), task_options)
    # A message that replaces another one states the end of the other, or that of an entry of a delay level.
    ends = mask_of(pc.is_valid(rows["mark_identity"])) | mask_of(pc.is_valid(rows["origin_offset"]))
    replacing = where(rows, timed & ends)
    yield from _items("claims", claims_of(replacing, np.ones(replacing.num_rows, np.bool_)), task_options)
    carrying = where(rows, delayed & ~timed & mask_of(pc.is_valid(rows["origin_offset"])))
    yield from _items("claims", claims_of(carrying, np.zeros(carrying.num_rows, np.bool_)), task_options)
    yield from _items("claims", takeovers_of(where(rows, timed)), task_options)


def _classified(
    rows: pa.Table, task_options: TaskOptions, buffers: dict[str, _SumBuffer], facts: Facts
) -> Generator[Item, None, Mask]:
    """Yield items of records outside the topics of delayed records; return a mask of those that may be dead."""
    consumption, options = task_options.consumption, task_options.compaction
    half, op, mark = (is_topic(rows, topic) for topic in (HALF_TOPIC, OP_HALF_TOPIC, MARKS_TOPIC))
    if half.any():
        halves = compaction.halves(where(rows, half))
        facts.note_halves(halves)
        yield from _items("halves", halves, task_options)
    if op.any():
        ends = where(rows, op)
        buffers["named"].add(compaction.naming(ends, consumption, operations=True))
        named = where(ends, mask_of(pc.is_valid(ends["half_offset"]))).select(["half_offset"])
        yield from _items("ended", named, task_options)
    if mark.any():
        buffers["named"].add(compaction.naming(where(rows, mark), consumption, operations=False))
    is_plain = ~(half | op | mark)
    plain = where(rows, is_plain)
    reason, replayable = compaction.plain(plain, consumption, options)
    keyed = compaction.is_keyed(plain, options)
    if keyed.any():
        yield from _items(
            "keyed", compaction.keyed(where(plain, keyed), reason[keyed], replayable[keyed]), task_options
        )
    buffers["compaction"].add(compaction.breakdown(where(plain, ~keyed), reason[~keyed], replayable[~keyed]))
    removable = np.zeros(rows.num_rows, np.bool_)
    # It is not yet known which keyed records a later one supersedes.
    removable[is_plain] = (reason < len(compaction.DEAD_REASONS)) | keyed
    return removable


def settle(items: Iterable[tuple[str, Any]], task_options: TaskOptions, number: int) -> Iterator[Item]:
    """Run the second stage on all items of partition `number`."""
    facts: list[Facts] = []
    buffers = {name: _SumBuffer(each) for name, each in ALL_SUMS.items()}
    met: dict[str, list[pa.Table]] = {name: [] for name in _MEET}
    for name, value in items:
        if name == FACTS:
            facts.append(value)
        elif name in met:
            met[name].append(unpack(value))
        else:
            buffers[name].add(unpack(value))
    tables = {name: pa.concat_tables([schema.empty_table(), *met.pop(name)]) for name, schema in _MEET.items()}
    if task_options.has_delays:
        for name, sums in _of_delays(
            tables.pop("origins"), tables.pop("claims"), tables.pop("changes"), task_options, number
        ):
            if name in buffers:
                buffers[name].add(sums)
            else:
                yield 0, (name, pack(sums))
    if "compaction" in task_options.sections:
        buffers["compaction"].add(compaction.of_halves(tables["halves"], tables["ended"], task_options.consumption))
        buffers["compaction"].add(compaction.of_keyed(tables["keyed"]))
    for name, each in buffers.items():
        sums = each.taken()
        if name == "hot_keys":
            # All messages with the same keys are in this partition.
            sums = traffic.hot_keys(sums, MAX_ROWS)
        for place, some in scattered(sums, _place(name, sums, task_options.add_tasks), task_options.add_tasks):
            yield place, (name, pack(some))
    if facts:
        yield task_options.add_tasks, (FACTS, Facts.merged(facts))


def _of_delays(
    origins: pa.Table, claims: pa.Table, changes: pa.Table, task_options: TaskOptions, number: int
) -> Iterator[tuple[str, pa.Table]]:
    settled = settlements.settle(origins, claims, task_options.consumption.delay_offsets, changes)
    if "compaction" in task_options.sections:
        yield "compaction", compaction.of_delayed(settled.origins)
        yield "proofs", PROOFS.of(settled.proofs)
    if "delay" in task_options.sections:
        delayed = delay.rows_of(settled.origins, settled.runs)
        if task_options.out is not None and (delayed.num_rows or number == 0):
            write_part(task_options.out, "delay", number, delayed)
        yield "fates", delay.fates(delayed)
        yield "points", delay.points(delayed)
        yield "histogram", delay.histogram(delayed)
        yield "waiting", delay.waiting(delayed, task_options.compaction.as_of_ms)
        yield "coming", delay.coming(delayed, task_options.compaction.as_of_ms)
        yield "offenders", delay.offenders(delayed, MAX_ROWS)


def aggregate(items: Iterable[tuple[str, Any]], task_options: TaskOptions, facts: Facts, number: int) -> Aggregates:
    """Run the third stage on all items of partition `number`; return the few rows of the summary."""
    buffers = {name: _SumBuffer(each) for name, each in ALL_SUMS.items()}
    offenders = []
    for name, value in items:
        if name == "offenders":
            offenders.append(unpack(value))
        else:
            buffers[name].add(unpack(value))
    sums = {name: each.taken() for name, each in buffers.items()}
    if "compaction" in task_options.sections:
        named = compaction.of_naming(
            sums.pop("named"),
            facts.oldest_delayed,
            facts.oldest_timed,
            facts.oldest_half,
            complete=facts.skipped.complete,
        )
        sums["compaction"] = BREAKDOWN.add([sums["compaction"], named])
    if task_options.out is not None:
        for name in ("compaction", "traffic"):
            if name in task_options.sections and (sums[name].num_rows or number == 0):
                write_part(task_options.out, name, number, sums[name])
    return Aggregates.of(sums, offenders)


def _items(name: str, rows: pa.Table, task_options: TaskOptions) -> Iterator[Item]:
    """Yield the items of the first stage."""
    count = task_options.settle_tasks
    for place, some in scattered(rows, _place(name, rows, count), count):
        yield place, (name, pack(some))


def _place(name: str, rows: pa.Table, count: int) -> Integers:
    """Return the partition of each row: related rows are in the same one."""
    return _PLACES[name](rows, count) if name in _PLACES else place_of_topics(rows["topic"], count)


def _by_text(column: str) -> Callable[[pa.Table, int], Integers]:
    return lambda rows, count: place_of_texts(rows[column], count)


def _by_offset(column: str) -> Callable[[pa.Table, int], Integers]:
    return lambda rows, count: place_of_integers(rows[column], count)


def _by_group(rows: pa.Table, count: int) -> Integers:
    parts = [rows["by"], rows["name"], rows["number"].cast(pa.string())]
    return place_of_texts(pc.binary_join_element_wise(*parts, ":", null_handling="replace"), count)


def _all_together(rows: pa.Table, count: int) -> Integers:
    return np.zeros(rows.num_rows, np.int64)


_PLACES: Final[dict[str, Callable[[pa.Table, int], Integers]]] = {
    "origins": places_of,
    "claims": places_of,
    "halves": _by_offset("queue_offset"),
    "ended": _by_offset("half_offset"),
    "keyed": _by_text("keys"),
    "hot_keys": _by_text("keys"),
    "fates": _by_group,
    "points": _by_group,
    **dict.fromkeys(("sizes", "proofs", "histogram", "waiting"), _all_together),
}
"""Tables not partitioned by topic."""
