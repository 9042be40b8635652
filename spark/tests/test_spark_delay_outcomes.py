"""Lateness, lost, duplicate and pending messages in workloads with known delays."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delaymq_spark.jobs import summary
from delaymq_spark.jobs.compaction import CompactionOptions
from delaymq_spark.store.positions import Positions
from delaymq_spark_testing.plain_rows import plain_messages
from delaymq_spark_testing.stages import MANY, ONE, Cluster, run_stages, table
from delaymq_spark_testing.workload import START_MS, Workload, Written

GOLDEN = Path(__file__).parents[2] / "broker_image/tests/golden"


OPTIONS = CompactionOptions(as_of_ms=START_MS)


def delayed(messages: pa.Table, positions: Positions, out: Path, cluster: Cluster = ONE) -> list[dict[str, Any]]:
    run_stages(messages, positions, OPTIONS, cluster=cluster, sections=frozenset({"delay"}), out=out)
    return table(out, "delay")


def outcomes(work: Workload, cluster: Cluster = ONE) -> dict[int, dict[str, Any]]:
    positions = Positions(path=str(work.path), delay_offsets=work.delay_offsets)
    rows = delayed(plain_messages(work.path), positions, work.path.parent / "out", cluster)
    return {row["physical_offset"]: row for row in rows}


@pytest.fixture(params=[True, False], ids=["marked", "unmarked"])
def work(request: pytest.FixtureRequest, tmp_path: Path) -> Workload:
    return Workload(tmp_path / "store", marks=request.param)


@pytest.mark.parametrize("cluster", [ONE, MANY], ids=["one task", "many tasks"])
def test_each_outcome_of_a_delayed_message_is_recognised(work: Workload, cluster: Cluster) -> None:
    late: dict[int, int] = {}
    entries: list[Written] = []
    for late_ms in (0, 3, 250, 60_001):
        entry = work.delay(1, "Later", 2)
        work.now_ms = entry.due_ms + late_ms
        work.deliver(entry)
        late[entry.physical_offset] = late_ms
        entries.append(entry)
    lost = work.delay(1, "Later", 2)
    work.lose(lost)
    twice = work.delay(1, "Later", 2)
    work.now_ms = twice.due_ms
    for _ in range(3):
        work.deliver(twice)
    early = work.delay(1, "Later", 2)
    work.now_ms = early.due_ms - 40
    work.deliver(early)
    work.set_delay_offsets()
    pending = work.delay(1, "Later", 2)
    work.close()

    found = outcomes(work, cluster)
    assert {offset: found[offset]["lateness_ms"] for offset in late} == late
    assert found[lost.physical_offset]["outcome"] == "lost"
    assert found[pending.physical_offset]["outcome"] == "pending"
    assert (found[twice.physical_offset]["copies"], found[twice.physical_offset]["lateness_ms"]) == (3, 0)
    assert found[early.physical_offset]["lateness_ms"] == -40
    assert all(found[entry.physical_offset]["copies"] == 1 for entry in entries)


@pytest.mark.parametrize("cluster", [ONE, MANY], ids=["one task", "many tasks"])
def test_aggregates_match_the_messages(tmp_path: Path, cluster: Cluster) -> None:
    work = Workload(tmp_path / "store")
    for late_ms in range(100):
        entry = work.delay(5, "Later", 0)
        work.now_ms = entry.due_ms + late_ms
        work.deliver(entry)
    work.drop(work.delay(5, "Later", 0))
    work.set_delay_offsets()
    for level in (1, 4, 18):
        work.delay(level, "Later", 0)
    work.close()
    positions = Positions(path="", delay_offsets=work.delay_offsets)
    options = CompactionOptions(as_of_ms=work.now_ms + 1_500)
    aggregates = run_stages(
        plain_messages(work.path), positions, options, cluster=cluster, sections=frozenset({"delay"})
    )
    wanted = {"messages": 104, "delivered": 100, "pending": 3, "withdrawn": 1, "lost": 0, "duplicates": 0, "early": 0,
              "p50_ms": 49, "p90_ms": 89, "p99_ms": 98, "max_ms": 99, "mean_ms": 49.5}  # fmt: skip
    (whole,) = aggregates.rows("whole")
    assert {name: whole[name] for name in wanted} == wanted
    (topic,) = aggregates.rows("late_topics")
    assert {name: topic[name] for name in wanted} == wanted
    assert topic["name"] == "Later"
    assert {row["number"]: row["messages"] for row in aggregates.rows("levels")} == {1: 1, 4: 1, 5: 101, 18: 1}
    waiting = {(row["level"], row["due"]): row["messages"] for row in aggregates.rows("waiting")}
    assert waiting == {(1, "overdue"): 1, (4, "next minute"): 1, (18, "next day"): 1}
    buckets = {row["from_ms"]: row["messages"] for row in aggregates.rows("histogram")}
    assert buckets == {0: 1, 1: 1, 2: 3, 5: 5, 10: 10, 20: 30, 50: 50}
    assert aggregates.rows("offenders") == []


def test_histogram_of_the_summary_includes_empty_buckets_between_others(tmp_path: Path) -> None:
    work = Workload(tmp_path / "store")
    for late_ms in (-1, 60, 1_100):
        entry = work.delay(5, "Later", 0)
        work.now_ms = entry.due_ms + late_ms
        work.deliver(entry)
    work.close()
    aggregates = run_stages(plain_messages(work.path), Positions(path=""), OPTIONS, sections=frozenset({"delay"}))
    found = summary.of_delay(aggregates, work.now_ms, 100, complete=True)["histogram"]
    assert {each["fromMs"]: each["messages"] for each in found} == {
        -1: 1, 0: 0, 1: 0, 2: 0, 5: 0, 10: 0, 20: 0, 50: 1, 100: 0, 200: 0, 500: 0, 1_000: 1
    }  # fmt: skip


def test_mark_that_does_not_match_the_named_record_settles_nothing(tmp_path: Path) -> None:
    work = Workload(tmp_path / "store")
    entry, other = work.delay(1, "Later", 0), work.delay(1, "Elsewhere", 0)
    work.now_ms = other.due_ms
    forged = dict(work.deliver(other).message.properties)
    forged["__DMQ_MARK"] = f"delivered:{entry.queue_id}:{entry.queue_offset}:{entry.physical_offset}"
    work.append("Elsewhere", 0, "retained", properties=forged)
    work.close()
    assert outcomes(work)[entry.physical_offset]["outcome"] == "pending"


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_store_of_the_real_broker_has_six_delivered_and_six_pending_messages(tmp_path: Path, name: str) -> None:
    with tarfile.open(GOLDEN / f"store-{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    positions = Positions(path="", delay_offsets={1: 6})
    found = delayed(plain_messages(tmp_path), positions, tmp_path / "out", MANY)
    rows = [row for row in found if row["topic"] == "GoldenDelay"]
    assert sorted((row["level"], row["outcome"], row["copies"]) for row in rows) == (
        [(1, "delivered", 1)] * 6 + [(5, "pending", 0)] * 2 + [(18, "pending", 0)] * 4
    )
    assert all(0 <= row["lateness_ms"] < 2_000 for row in rows if row["outcome"] == "delivered")
