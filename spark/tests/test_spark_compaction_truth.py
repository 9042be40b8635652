"""The analysis says of every byte what the workload knows of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaymq_spark.jobs import compaction
from delaymq_spark.jobs.plan import Action, Sum, make_plan
from delaymq_spark.positions import Positions
from pyspark.sql import DataFrame, SparkSession
from spark_plain_rows import plain_messages
from spark_workload import RETENTION_HOURS, Workload, mixed_workload

pytestmark = pytest.mark.core


def positions_of(work: Workload) -> Positions:
    return Positions(
        path=str(work.path),
        consumer_offsets=work.consumed,
        delay_offsets=work.delay_offsets,
        deleted_topics={r.topic: 10**9 for r in work.records if r.reason == "topic_deleted"},
    )


def classified(spark: SparkSession, work: Workload, **options: object) -> DataFrame:
    given = {"retention_hours": RETENTION_HOURS, "keyed_topics": frozenset({"State"}), **options}
    wanted = compaction.CompactionOptions(as_of_ms=work.now_ms, **given)  # type: ignore[arg-type]
    return compaction.classify(plain_messages(spark, work.path), positions_of(work), wanted)


@pytest.fixture(scope="module", params=[(1, True), (3, False)], ids=["ours", "without marks"])
def work(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Workload:
    seed, marks = request.param
    return mixed_workload(tmp_path_factory.mktemp("mixed") / "store", seed=seed, marks=marks)


@pytest.fixture(scope="module")
def kept(spark: SparkSession, work: Workload) -> Iterator[DataFrame]:
    """The classified records, computed once."""
    frame = classified(spark, work).persist()
    yield frame
    frame.unpersist()


def test_every_record_has_the_reason_that_the_workload_knows(kept: DataFrame, work: Workload) -> None:
    found = {row.physical_offset: row.reason for row in kept.collect()}
    wrong = [
        (record, found.get(record.physical_offset))
        for record in work.records
        if found.get(record.physical_offset) != record.reason
    ]
    assert not wrong
    assert len(found) == len(work.records)


def test_the_workload_has_each_reason_so_that_each_is_tested(work: Workload) -> None:
    there = {record.reason for record in work.records}
    wanted = {"delivered", "transaction_settled", "topic_deleted", "consumed", "superseded", "expired", "pending",
              "half_pending", "operation_needed", "unread", "retained"}  # fmt: skip
    assert wanted <= there
    assert len({record.segment for record in work.records}) >= 3


def test_sums_by_topic_segment_and_reason_are_the_truth_to_the_byte(kept: DataFrame, work: Workload) -> None:
    rows = compaction.breakdown(kept).collect()
    found: Counter[tuple[object, ...]] = Counter()
    for row in rows:
        found[row.topic, row.segment, row.reason] += row.bytes
    assert found == work.bytes_by("topic", "segment", "reason")
    assert all(row.dead == (row.reason in compaction.DEAD_REASONS) for row in rows)


def test_the_plan_gives_back_what_is_dead_outside_the_segment_being_written(kept: DataFrame, work: Workload) -> None:
    rows = compaction.breakdown(kept).collect()
    sums = [
        Sum(segment=row.segment, dead=row.dead, reason=row.reason, messages=row.messages, bytes=row.bytes)
        for row in rows
    ]
    plan = make_plan(sums, min_dead_ratio=0)
    active = max(record.segment for record in work.records)
    old = [record for record in work.records if record.segment != active]
    assert plan.reclaimable_bytes == sum(r.size for r in old if r.reason in compaction.DEAD_REASONS)
    touched = {each.segment for each in plan.segments if each.action in (Action.DROP, Action.REWRITE)}
    assert plan.copied_bytes == sum(r.size for r in old if r.segment in touched and r.reason in compaction.LIVE_REASONS)
    pending = [r for r in old if r.reason in ("pending", "half_pending", "lost")]
    assert sum(each.pinning_bytes for each in plan.pins) == sum(r.size for r in pending)


def test_tools_read_nothing_and_keys_replace_nothing_unless_told(spark: SparkSession, tmp_path: Path) -> None:
    work = Workload(tmp_path / "store")
    sent = [work.send("Kept", 0, "retained", keys="same") for _ in range(3)]
    work.consume("TOOLS_CONSUMER", "Kept", 0, 3)
    work.close()
    assert [row.reason for row in classified(spark, work).collect()] == ["retained"] * len(sent)


def test_a_group_that_never_read_a_queue_holds_all_of_it(spark: SparkSession, tmp_path: Path) -> None:
    work = Workload(tmp_path / "store")
    for queue_id in (0, 1):
        work.send("Read", queue_id, "consumed" if queue_id == 0 else "unread")
    work.consume("a", "Read", 0, 1)
    work.consume("a", "Read", 1, 1)
    work.consume("b", "Read", 0, 1)
    work.close()
    found = {row.queue_id: row.reason for row in classified(spark, work).collect()}
    assert found == {0: "consumed", 1: "unread"}


def test_an_empty_store_has_no_sums(spark: SparkSession, tmp_path: Path) -> None:
    work = Workload(tmp_path / "store")
    work.close()
    assert compaction.breakdown(classified(spark, work)).collect() == []
    assert make_plan([]).segments == ()
