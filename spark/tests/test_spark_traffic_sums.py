"""Traffic figures of workloads with known messages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from delaymq_spark.jobs.compaction import CompactionOptions
from delaymq_spark.store.positions import Positions
from delaymq_spark_testing.plain_rows import plain_messages
from delaymq_spark_testing.stages import MANY, ONE, Cluster, run_stages, table
from delaymq_spark_testing.workload import HOUR_MS, Workload


@pytest.mark.parametrize("cluster", [ONE, MANY], ids=["one task", "many tasks"])
def test_rates_sizes_keys_skew_and_failures_match_the_workload(tmp_path: Path, cluster: Cluster) -> None:
    work = Workload(tmp_path / "store")
    for _ in range(9):
        work.send("Skewed", 0, "retained", b"", keys="hot")
    work.send("Skewed", 1, "retained", bytes(1), keys="rare")
    work.now_ms += HOUR_MS
    for body_bytes in (2, 3, 4, 1000, 1024):
        work.send("Even", 0, "retained", bytes(body_bytes))
    for _ in range(2):
        work.append("%RETRY%shop", 0, "retained", body=bytes(8), reconsume_times=1)
    work.append("%DLQ%shop", 0, "retained", body=bytes(8), reconsume_times=16)
    work.close()
    out = tmp_path / "out"
    options = CompactionOptions(as_of_ms=work.now_ms)
    aggregates = run_stages(
        plain_messages(work.path),
        Positions(path=""),
        options,
        cluster=cluster,
        sections=frozenset({"traffic"}),
        out=out,
    )
    rows = table(out, "traffic")

    assert (sum(row["messages"] for row in rows), sum(row["bytes"] for row in rows)) == (
        18, sum(r.size for r in work.records)
    )  # fmt: skip
    assert len({row["hour"] for row in rows}) == len(aggregates.rows("hours")) == 2
    topics = {row["topic"]: row for row in aggregates.rows("top_topics")}
    skewed, even = topics["Skewed"], topics["Even"]
    assert (skewed["messages"], skewed["queues"], skewed["fullest_queue"]) == (10, 2, 0)
    assert skewed["skew"] == 1.8
    assert even["bytes"] == sum(r.size for r in work.records if r.topic == "Even")
    assert even["peak_hour_messages"] == 5
    sizes = {row["from_bytes"]: row["messages"] for row in aggregates.rows("sizes")}
    assert sizes == {0: 9, 1: 1, 2: 2, 4: 1, 8: 3, 512: 1, 1024: 1}
    assert [(row["topic"], row["keys"], row["messages"]) for row in aggregates.rows("hot_keys")] == [
        ("Skewed", "hot", 9)
    ]
    (failed,) = aggregates.rows("failures")
    assert (failed["group"], failed["retries"], failed["dead_letters"]) == ("shop", 2, 1)
    again: Counter[str] = Counter()
    for row in rows:
        again[row["topic"]] += row["again"]
    assert again == {"Skewed": 0, "Even": 0, "%RETRY%shop": 2, "%DLQ%shop": 1}
