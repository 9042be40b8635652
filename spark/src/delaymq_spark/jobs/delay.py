"""Delivery lateness, losses and duplicates, compared with the guarantees (docs/analytics.md)."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delaymq_spark.jobs.claims import DELIVERED, LOST, OUTCOMES, PENDING
from delaymq_spark.jobs.columns import TIME, Integers, codes, hour_of, integers, mask_of, milliseconds, where
from delaymq_spark.jobs.sums import Sums, first, quantiles, thinned

LATENESS_EDGES_MS: Final = (
    0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000, 3_600_000,
)  # fmt: skip
"""Lower bounds of the histogram's buckets; early deliveries are in bucket -1."""
PENDING_EDGES: Final = (
    ("overdue", 0), ("next minute", 60_000), ("next 10 minutes", 600_000), ("next hour", 3_600_000),
    ("next day", 86_400_000), ("next week", 7 * 86_400_000), ("next 30 days", 30 * 86_400_000),
    ("next 365 days", 365 * 86_400_000),
)  # fmt: skip
"""Name and upper bound (ms from now) of the classes of pending messages, in order; the last class is `later`."""
PENDING_LATER: Final = "later"
PROMISE_P99_MS: Final = 100
"""Default of the promised lateness of 99 % of messages: RocketMQ's own time step is 100 ms."""
PERCENTS: Final = (50, 90, 99)
GROUPS: Final = ("whole", "level", "topic", "hour")
"""Columns whose values have separate figures; `whole` covers all records."""

_GROUP: Final = {"by": pa.string(), "name": pa.string(), "number": pa.int64()}
"""A value of one of GROUPS: a topic's name, or a level or an hour in µs since 1970; both null for `whole`, and for the
level of timed messages.
"""
FATES: Final = Sums(
    name="fates",
    keys=_GROUP,
    adds=("messages", *OUTCOMES, "duplicates", "early", "sum_ms"),
    most={"max_ms": pa.int64()},
)
POINTS: Final = Sums(name="points", keys={**_GROUP, "lateness_ms": pa.int64()}, adds=("delivered",))
HISTOGRAM: Final = Sums(name="histogram", keys={"from_ms": pa.int64()}, adds=("messages",))
WAITING: Final = Sums(
    name="waiting",
    keys={"level": pa.int32(), "due": pa.string()},
    adds=("messages", "bytes"),
    least=("first_due",),
    most={"last_due": TIME},
)
HORIZONS_MS: Final = {"1m": 60_000, "10m": 600_000, "1h": 3_600_000, "1d": 86_400_000}
"""Times from now by which brokers tell pending messages of a topic apart, in order. Overdue messages belong to the
first, and later ones to `more`."""
DUE_IN: Final = (*HORIZONS_MS, "more")
COMING: Final = Sums(name="coming", keys={"topic": pa.string()}, adds=("pending", *DUE_IN))
MOST_PENDING_FIRST: Final = (("pending", "descending"), ("topic", "ascending"))
OFFENDERS: Final = (
    "broken",
    "level",
    "topic",
    "queue_offset",
    "physical_offset",
    "due_time",
    "lateness_ms",
    "copies",
    "run",
)
WORST_FIRST: Final = (("rank", "ascending"), ("lateness_ms", "ascending"), ("physical_offset", "ascending"))


def rows_of(settled: pa.Table, runs: pa.Table) -> pa.Table:
    """Return one row per delayed message of `settlements.settle`, and one per run of a repeating message. A message
    that has ended with its last run has no other row.

    Columns: level (null for a timed message), topic (the real one), queue_id (of the schedule or timer topic),
    queue_offset, physical_offset, segment, size, store_time, due_time, copy_time, copy_offset, copies, outcome,
    identity (of a timed message), run (number of the run; null in other rows), lateness_ms (null
    unless delivered), hour (of due_time).
    """
    messages = where(settled, mask_of(settled["holds"]))
    at = settled.column_names.index("run")
    messages = messages.set_column(at, "run", pa.nulls(messages.num_rows, pa.int64()))
    settled = pa.concat_tables([messages, runs])
    level = pc.coalesce(settled["delay_level"], pc.add(settled["queue_id"], pa.scalar(1, pa.int32())))
    level = pc.if_else(pc.is_null(settled["timer_record"]), level, pa.scalar(None, pa.int32()))
    late = pc.subtract(milliseconds(settled["copy_time"]), milliseconds(settled["due_time"]))
    late = pc.if_else(pc.equal(settled["outcome"], DELIVERED), late, pa.scalar(None, pa.int64()))
    same = (
        "queue_id", "queue_offset", "physical_offset", "segment", "size", "store_time", "due_time", "copy_time",
        "copy_offset", "copies", "outcome", "identity", "run",
    )  # fmt: skip
    columns = [level, settled["real_topic"], *(settled[name] for name in same), late, hour_of(settled["due_time"])]
    return pa.table(columns, names=["level", "topic", *same, "lateness_ms", "hour"])


def fates(delayed: pa.Table) -> pa.Table:
    """Return the FATES of each group."""
    late, outcome = delayed["lateness_ms"], delayed["outcome"]
    numbers = {
        "messages": np.ones(delayed.num_rows, np.int64),
        **{name: mask_of(pc.equal(outcome, name)).astype(np.int64) for name in OUTCOMES},
        "duplicates": np.maximum(integers(delayed["copies"]) - 1, 0),
        "early": mask_of(pc.less(late, 0)).astype(np.int64),
        "sum_ms": integers(late),
    }
    values = {name: pa.array(each) for name, each in numbers.items()} | {"max_ms": late}
    return FATES.add([FATES.of(_grouped(delayed, group, values)) for group in GROUPS])


def points(delayed: pa.Table) -> pa.Table:
    """Return the POINTS of each group: the number of messages by lateness."""
    late = where(delayed, mask_of(pc.is_valid(delayed["lateness_ms"])))
    values = {"lateness_ms": late["lateness_ms"], "delivered": pa.array(np.ones(late.num_rows, np.int64))}
    found = [POINTS.of(_grouped(late, group, values)) for group in GROUPS]
    return thinned(POINTS.add(found), list(_GROUP), "lateness_ms", "delivered")


def _grouped(delayed: pa.Table, group: str, values: dict[str, pa.Array]) -> pa.Table:
    count = delayed.num_rows
    name, number = pa.nulls(count, pa.string()), pa.nulls(count, pa.int64())
    if group == "topic":
        name = delayed["topic"]
    elif group != "whole":
        number = delayed[group].cast(pa.int64())
    return pa.table({"by": pa.repeat(group, count), "name": name, "number": number, **values})


def lateness(sums: pa.Table, spread: pa.Table) -> pa.Table:
    """Return the figures of each group, from all of its FATES and POINTS.

    Columns: by, name, number, messages, the outcomes, duplicates, early, p50_ms, p90_ms, p99_ms, max_ms, mean_ms.
    """
    of_group = _distributions(spread)
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int64)
    keys = zip(*(sums[name].to_pylist() for name in _GROUP), strict=True)
    spreads = [of_group.get(key, nothing) for key in keys]
    shares = [quantiles(values, counts, PERCENTS) for values, counts in spreads]
    found = sums.select([*_GROUP, "messages", *OUTCOMES, "duplicates", "early"])
    for at, percent in enumerate(PERCENTS):
        found = found.append_column(f"p{percent}_ms", pa.array([each[at] for each in shares], pa.int64()))
    # Not divided by `delivered`: a record without a readable due time has no lateness.
    timed = pa.array([int(counts.sum()) or None for _, counts in spreads], pa.float64())
    mean = pc.divide(sums["sum_ms"].cast(pa.float64()), timed)
    return found.append_column("max_ms", sums["max_ms"]).append_column("mean_ms", mean)


def _distributions(spread: pa.Table) -> dict[tuple[object, ...], tuple[Integers, Integers]]:
    """Return the values and counts of each group."""
    if not spread.num_rows:
        return {}
    values, counts = integers(spread["lateness_ms"]), integers(spread["delivered"])
    packed = np.zeros(spread.num_rows, np.int64)
    for name in _GROUP:
        # Without a loop over the values: there are far more of them than groups.
        numbers, names = codes(spread[name])
        packed = packed * len(names) + numbers
    _, firsts, group = np.unique(packed, return_index=True, return_inverse=True)
    order = np.argsort(group, kind="stable")
    pieces = np.split(order, np.cumsum(np.bincount(group))[:-1])
    keys = spread.select(list(_GROUP)).take(pa.array(firsts)).to_pylist()
    return {tuple(key.values()): (values[rows], counts[rows]) for key, rows in zip(keys, pieces, strict=True)}


def histogram(delayed: pa.Table) -> pa.Table:
    """Return the HISTOGRAM of the lateness of delivered messages."""
    late = integers(delayed["lateness_ms"])[mask_of(pc.is_valid(delayed["lateness_ms"]))]
    edges = np.array((-1, *LATENESS_EDGES_MS))
    bucket = np.searchsorted(np.array(LATENESS_EDGES_MS), late, side="right")
    return HISTOGRAM.of(pa.table({"from_ms": edges[bucket], "messages": np.ones(len(late), np.int64)}))


def waiting(delayed: pa.Table, as_of_ms: int) -> pa.Table:
    """Return WAITING: pending messages by level and due time."""
    found = where(delayed, mask_of(pc.equal(delayed["outcome"], PENDING)))
    missing = mask_of(pc.is_null(found["due_time"]))
    ahead_ms = integers(milliseconds(found["due_time"])) - as_of_ms
    conditions = [~missing & (ahead_ms <= edge_ms) for _, edge_ms in PENDING_EDGES]
    names = pa.array([*(name for name, _ in PENDING_EDGES), PENDING_LATER])
    due = np.select(conditions, list(range(len(PENDING_EDGES))), len(PENDING_EDGES)).astype(np.int64)
    columns = {
        "level": found["level"], "due": names.take(pa.array(due)),
        "messages": pa.array(np.ones(found.num_rows, np.int64)), "bytes": found["size"].cast(pa.int64()),
        "first_due": found["due_time"], "last_due": found["due_time"],
    }  # fmt: skip
    return WAITING.of(pa.table(columns))


def coming(delayed: pa.Table, as_of_ms: int) -> pa.Table:
    """Return COMING: pending messages by topic, with those of each horizon. A message without a due time is in none."""
    found = where(delayed, mask_of(pc.equal(delayed["outcome"], PENDING)))
    ahead_ms = integers(milliseconds(found["due_time"])) - as_of_ms
    horizon = np.searchsorted(np.array(list(HORIZONS_MS.values())), ahead_ms, side="right")
    horizon[mask_of(pc.is_null(found["due_time"]))] = -1
    counts = {name: pa.array((horizon == at).astype(np.int64)) for at, name in enumerate(DUE_IN)}
    pending = pa.array(np.ones(found.num_rows, np.int64))
    return COMING.of(pa.table({"topic": pc.coalesce(found["topic"], ""), "pending": pending, **counts}))


def offenders(delayed: pa.Table, limit: int) -> pa.Table:
    """Return the messages that violated a guarantee, worst first: lost, early, delivered more than once. OFFENDERS
    with their `rank`.
    """
    kinds = pa.array(["lost", "early", "duplicate"])
    conditions = [
        mask_of(pc.equal(delayed["outcome"], LOST)),
        mask_of(pc.less(delayed["lateness_ms"], 0)),
        integers(delayed["copies"]) > 1,
    ]
    rank = np.select(conditions, [0, 1, 2], -1).astype(np.int64)
    found = where(delayed.append_column("rank", pa.array(rank)), rank >= 0)
    found = found.append_column("broken", kinds.take(found["rank"]))
    return first(found.select([*OFFENDERS, "rank"]), limit, *WORST_FIRST)
