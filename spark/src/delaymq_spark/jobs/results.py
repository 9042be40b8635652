"""Results of all sums: the few rows of the summary, and the Parquet files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delaymq_spark.jobs import delay, traffic
from delaymq_spark.jobs.columns import TIME, where
from delaymq_spark.jobs.compaction import PROOFS
from delaymq_spark.jobs.delay import HISTOGRAM, WAITING
from delaymq_spark.jobs.sums import Sums, by, first
from delaymq_spark.jobs.traffic import SIZES

MAX_ROWS: Final = 20
"""Maximum length of lists of topics, keys, groups and messages."""
MAX_HOURS: Final = 24 * 31

_COUNTS: Final = ("messages", "bytes")
SEGMENTS: Final = Sums(
    name="segments", keys={"segment": pa.int64()}, adds=_COUNTS, least=("first_stored",), most={"last_stored": TIME}
)
REASONS: Final = Sums(
    name="reasons",
    keys={"segment": pa.int64(), "dead": pa.bool_(), "reason": pa.string(), "replayable": pa.bool_()},
    adds=_COUNTS,
    most={"last_due": TIME},
)
HOURS: Final = Sums(name="hours", keys={"hour": TIME}, adds=_COUNTS)
KINDS: Final = Sums(name="kinds", keys={"kind": pa.string()}, adds=_COUNTS)
_ADDED: Final = {each.name: each for each in (SEGMENTS, REASONS, PROOFS, HISTOGRAM, WAITING, HOURS, KINDS, SIZES)}
_CUT: Final[dict[str, tuple[int, tuple[tuple[str, str], ...]]]] = {
    "dead_topics": (MAX_ROWS, (("deadBytes", "descending"), ("bytes", "descending"), ("topic", "ascending"))),
    "levels": (1 << 16, (("number", "ascending"),)),
    "late_topics": (MAX_ROWS, (("max_ms", "descending"), ("name", "ascending"))),
    "late_hours": (MAX_HOURS, (("number", "descending"),)),
    "whole": (1, (("number", "ascending"),)),
    "coming": (MAX_ROWS, delay.MOST_PENDING_FIRST),
    "offenders": (MAX_ROWS, delay.WORST_FIRST),
    "top_topics": (MAX_ROWS, (("bytes", "descending"), ("topic", "ascending"))),
    "hot_keys": (MAX_ROWS, traffic.MOST_FIRST),
    "failures": (MAX_ROWS, traffic.MOST_FAILURES_FIRST),
}
"""Truncated lists: number of rows and sort order. No two partitions have a row in common."""


@dataclass(frozen=True, slots=True)
class Aggregates:
    """Results of `tasks.aggregate` for some topics or, merged, for all."""

    topics: int
    tables: Mapping[str, pa.Table]
    """Tables by name for the requested sections, from _ADDED and _CUT."""

    @staticmethod
    def of(sums: Mapping[str, pa.Table], offenders: Sequence[pa.Table]) -> Aggregates:
        """Return the results from all sums of some topics: `tasks.ALL_SUMS` by name."""
        volume, reasons, rates = sums["volume"], sums["compaction"], sums["traffic"]
        late = delay.lateness(sums["fates"], sums["points"])
        tables = {
            "segments": SEGMENTS.of(volume),
            "reasons": REASONS.of(reasons),
            "proofs": sums["proofs"],
            "dead_topics": _dead_topics(reasons),
            "histogram": sums["histogram"],
            "waiting": sums["waiting"],
            "coming": sums["coming"],
            "whole": _of_group(late, "whole"),
            "levels": _of_group(late, "level"),
            "late_topics": _of_group(late, "topic"),
            "late_hours": where_known(_of_group(late, "hour"), "number"),
            "top_topics": traffic.topics(rates),
            "hours": HOURS.of(rates),
            "kinds": KINDS.of(rates),
            "sizes": sums["sizes"],
            "hot_keys": sums["hot_keys"],
            "failures": traffic.failures(rates),
        }
        if offenders:
            tables["offenders"] = pa.concat_tables(offenders)
        return Aggregates(len(pc.unique(volume["topic"])), {name: _cut(name, table) for name, table in tables.items()})

    @staticmethod
    def merged(found: Sequence[Aggregates]) -> Aggregates:
        """Merge the results of all partitions; at least one."""
        tables: dict[str, pa.Table] = {}
        for name in dict.fromkeys(name for each in found for name in each.tables):
            parts = [each.tables[name] for each in found if name in each.tables]
            sums = _ADDED.get(name)
            tables[name] = _cut(name, pa.concat_tables(parts)) if sums is None else sums.add(parts)
        return Aggregates(sum(each.topics for each in found), tables)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        table = self.tables.get(name)
        return [] if table is None else table.to_pylist()


def where_known(rows: pa.Table, column: str) -> pa.Table:
    """Return rows with a value in this column."""
    return rows.filter(pc.is_valid(rows[column]))


def part_name(number: int) -> str:
    """Return the file name of a part; the first part always exists."""
    return f"part-{number:05d}.parquet"


def write_part(out: Path, name: str, number: int, rows: pa.Table) -> None:
    """Write one part of a Parquet file atomically. OSError."""
    folder = out / f"{name}.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    # The process id keeps names unique if Spark runs the same task twice concurrently.
    part = folder / f".{part_name(number)}.{os.getpid()}"
    pq.write_table(rows, part)
    os.replace(part, folder / part_name(number))


def _of_group(late: pa.Table, group: str) -> pa.Table:
    return where(late, pc.equal(late["by"], group).to_numpy())


def _dead_topics(reasons: pa.Table) -> pa.Table:
    dead = pc.if_else(reasons["dead"], reasons["bytes"], 0)
    sums = {name: (name, "sum") for name in (*_COUNTS, "deadBytes")}
    return by(reasons.append_column("deadBytes", dead), ["topic"], **sums)


def _cut(name: str, rows: pa.Table) -> pa.Table:
    if name not in _CUT:
        return rows
    limit, order = _CUT[name]
    return first(rows, limit, *order)
