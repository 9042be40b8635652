"""Sums of partial results, exactness and size of percentiles, and partitioning of rows."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from delaymq_spark.jobs import delay
from delaymq_spark.jobs.columns import TIME, pack, place_of_texts, scattered, unpack
from delaymq_spark.jobs.delay import POINTS
from delaymq_spark.jobs.sums import MAX_POINTS, quantiles, rank_of, thinned

pytestmark = pytest.mark.core
KEYS = ["by", "name", "number"]


def spread(values: np.ndarray, name: str | None = None) -> pa.Table:
    """Return the POINTS of one group."""
    count = len(values)
    columns = {
        "by": pa.repeat("topic", count), "name": pa.array([name] * count, pa.string()),
        "number": pa.nulls(count, pa.int64()), "lateness_ms": pa.array(values), "delivered": np.ones(count, np.int64),
    }  # fmt: skip
    return POINTS.of(pa.table(columns))


def figures(points: pa.Table, name: str | None = None) -> list[int]:
    """Return p50, p90 and p99 of a group."""
    row = {**dict.fromkeys(delay.FATES.schema.names, 0), "by": "topic", "name": name, "number": None, "max_ms": 1}
    found = delay.lateness(pa.Table.from_pylist([row], schema=delay.FATES.schema), points).to_pylist()[0]
    return [found[f"p{percent}_ms"] for percent in delay.PERCENTS]


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 10_000])
def test_percentiles_of_few_values_are_exact(count: int) -> None:
    values = np.array(random.Random(count).sample(range(-5, 1_000_000), count))
    expected = [int(np.sort(values)[rank_of(percent, count) - 1]) for percent in delay.PERCENTS]
    assert figures(spread(values)) == expected


def test_percentiles_of_many_values_deviate_by_at_most_one_rank_in_ten_thousand() -> None:
    chance = np.random.default_rng(3)
    parts = [(chance.lognormal(6, 3, 60_000) * 7).astype(np.int64) for _ in range(5)]
    kept = [thinned(spread(part, name), KEYS, "lateness_ms", "delivered") for part in parts for name in ("a", None)]
    # Two groups that must not be mixed.
    assert all(each.num_rows <= MAX_POINTS + 1 for each in kept)
    values = np.sort(np.concatenate(parts))
    for name in ("a", None):
        for percent, found in zip(delay.PERCENTS, figures(POINTS.add(kept), name), strict=True):
            rank = rank_of(percent, len(values))
            low, high = np.searchsorted(values, found, "left") + 1, np.searchsorted(values, found, "right")
            assert low - rank <= len(values) / 10_000
            assert rank - high <= len(values) / 10_000


def test_thinning_preserves_the_count_and_the_maximum() -> None:
    values = np.arange(100_000) ** 2
    both = pa.concat_tables([spread(values, "a"), spread(np.array([7, 7, 9]), "b")])
    found = thinned(both, KEYS, "lateness_ms", "delivered").to_pylist()
    assert sum(row["delivered"] for row in found if row["name"] == "a") == len(values)
    assert max(row["lateness_ms"] for row in found) == values[-1]
    assert [(row["lateness_ms"], row["delivered"]) for row in found if row["name"] == "b"] == [(7, 2), (9, 1)]


def test_quantiles_of_no_values_are_none() -> None:
    assert quantiles(np.zeros(0, np.int64), np.zeros(0, np.int64), (50,)) == [None]


def test_each_row_goes_to_one_partition_and_equal_rows_to_the_same() -> None:
    texts = ["a", None, "b", "", "a", "ü", None, "b"]
    rows = pa.table({"text": pa.array(texts), "at": pa.array([0] * len(texts), TIME)})
    found: dict[str | None, list[int]] = {}
    for place, some in scattered(rows, place_of_texts(rows["text"], 3), 3):
        for text in unpack(pack(some))["text"].to_pylist():
            found.setdefault(text, []).append(place)
    assert {text: len(places) for text, places in found.items()} == {"a": 2, None: 2, "b": 2, "": 1, "ü": 1}
    assert all(len(set(places)) == 1 for places in found.values())
