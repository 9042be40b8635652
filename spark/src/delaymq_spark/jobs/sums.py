"""Sums that tasks compute for their parts, merged into a single result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delaymq_spark.jobs.columns import TIME, integers

MAX_POINTS: Final = 20_000
"""Maximum number of points of a distribution. It is thinned twice, each time shifting a rank by at most one per
MAX_POINTS: by 1 in 10,000 in total.
"""


@dataclass(frozen=True, kw_only=True)
class Sums:
    """A table with one row per combination of keys."""

    name: str
    keys: dict[str, pa.DataType]
    adds: tuple[str, ...]
    """Columns to add (64 bits)."""
    least: tuple[str, ...] = ()
    """Columns of times whose minimum is kept."""
    most: dict[str, pa.DataType] = field(default_factory=dict)
    """Columns whose maximum is kept."""

    @property
    def schema(self) -> pa.Schema:
        """Names and types."""
        values = {name: pa.int64() for name in self.adds} | dict.fromkeys(self.least, TIME) | self.most
        return pa.schema([*self.keys.items(), *values.items()])

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the sums of rows with all columns of the schema."""
        aggregates = [(name, "sum") for name in self.adds]
        aggregates += [(name, "min") for name in self.least] + [(name, "max") for name in self.most]
        narrow = pa.table([rows[name] for name in self.schema.names], names=self.schema.names)
        summed = narrow.group_by(list(self.keys), use_threads=False).aggregate(aggregates)
        columns = [summed[name] for name in self.keys] + [summed[f"{name}_{how}"] for name, how in aggregates]
        return pa.table(columns, names=self.schema.names).cast(self.schema)

    def add(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the sums of such tables; an empty table if there are none."""
        if not tables:
            return self.schema.empty_table()
        return tables[0] if len(tables) == 1 else self.of(pa.concat_tables(tables))


def by(rows: pa.Table, keys: Sequence[str], **values: tuple[str, str]) -> pa.Table:
    """Group rows by `keys` and aggregate columns: `by(rows, ["topic"], messages=("messages", "sum"))`."""
    summed = rows.group_by(list(keys), use_threads=False).aggregate(list(values.values()))
    columns = [summed[key] for key in keys] + [summed[f"{column}_{how}"] for column, how in values.values()]
    return pa.table(columns, names=[*keys, *values])


def first(rows: pa.Table, limit: int, *order: tuple[str, str]) -> pa.Table:
    """Return the first `limit` rows in this order; nulls come last."""
    return rows.sort_by(list(order)).slice(0, limit) if rows.num_rows else rows


def rank_of(percent: int, count: int) -> int:
    """Return the rank, from 1, of a percentile among `count` sorted values (nearest-rank method)."""
    return max(1, -(-percent * count // 100))


def quantiles(values: np.ndarray, counts: np.ndarray, percents: Sequence[int]) -> list[int | None]:
    """Return quantiles of values, each occurring `counts` times; None without values."""
    if not len(values):
        return [None] * len(percents)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(counts[order])
    ranks = [rank_of(percent, int(reached[-1])) for percent in percents]
    return [int(values[order][np.searchsorted(reached, rank)]) for rank in ranks]


def thinned(points: pa.Table, keys: Sequence[str], value: str, count: str, limit: int = MAX_POINTS) -> pa.Table:
    """Return the distributions of `keys`, thinned to about `limit` values each; smaller ones stay exact.

    Neighbouring values are merged into the greatest of them, so the ranks of the remaining values are exact.
    """
    if points.num_rows <= limit:
        return points
    order = [(key, "ascending") for key in keys] + [(value, "ascending")]
    points = points.sort_by(order)
    group = np.zeros(points.num_rows, np.int64)
    for key in keys:
        column = points[key].combine_chunks()
        same = pc.equal(column[1:], column[:-1])
        both_null = pc.and_(pc.is_null(column[1:]), pc.is_null(column[:-1]))
        group[1:] |= ~pc.or_(pc.fill_null(same, False), both_null).to_numpy(zero_copy_only=False)
    group = np.cumsum(group)
    counts = integers(points[count])
    wide = np.bincount(group)[group] > limit
    reached = np.cumsum(counts)
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    before = (reached[begins] - counts[begins])[group]
    whole = np.bincount(group, weights=counts).astype(np.int64)[group]
    # Steps of equal weight; a value that passes several of them keeps its own rank.
    step = np.where(wide, (reached - before - 1) * limit // np.maximum(whole, 1), np.arange(len(counts)))
    last = np.append((np.diff(step) != 0) | (np.diff(group) != 0), True)
    kept = np.flatnonzero(last)
    merged = np.diff(reached[kept], prepend=0)
    return points.take(pa.array(kept)).set_column(points.column_names.index(count), count, pa.array(merged))
