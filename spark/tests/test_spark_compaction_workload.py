"""Compaction analysis of generated workloads whose reasons and sizes are known."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from delaymq_spark.jobs import compaction
from delaymq_spark.jobs.plan import Action, Sum, make_plan
from delaymq_spark.store.positions import Positions
from delaymq_spark_testing.plain_rows import plain_messages
from delaymq_spark_testing.stages import MANY, ONE, Cluster, reasons, run_stages, shuffled, table
from delaymq_spark_testing.workload import RETENTION_HOURS, Workload, mixed_workload

pytestmark = pytest.mark.core


def positions_of(work: Workload) -> Positions:
    return Positions(
        path=str(work.path),
        consumer_offsets=work.consumed,
        delay_offsets=work.delay_offsets,
        deleted_topics={r.topic: 10**9 for r in work.records if r.reason == "topic_deleted"},
    )


def options_of(work: Workload) -> compaction.CompactionOptions:
    return compaction.CompactionOptions(
        as_of_ms=work.now_ms, retention_hours=RETENTION_HOURS, keyed_topics=frozenset({"State"})
    )


def classified(work: Workload, cluster: Cluster = ONE) -> dict[int, str]:
    return reasons(plain_messages(work.path), positions_of(work), options_of(work), cluster=cluster)


@pytest.fixture(scope="module", params=[(1, True), (3, False)], ids=["ours", "without marks"])
def work(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Workload:
    seed, marks = request.param
    return mixed_workload(tmp_path_factory.mktemp("mixed") / "store", seed=seed, marks=marks)


@pytest.fixture(scope="module", params=[ONE, MANY], ids=["one task", "many tasks"])
def rows(
    request: pytest.FixtureRequest, work: Workload, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Rows of compaction.parquet."""
    out = tmp_path_factory.mktemp("out")
    run_stages(plain_messages(work.path), positions_of(work), options_of(work), cluster=request.param, out=out)
    return table(out, "compaction")


@pytest.mark.parametrize("cluster", [ONE, MANY], ids=["one task", "many tasks"])
def test_every_record_gets_the_reason_known_to_the_workload(work: Workload, cluster: Cluster) -> None:
    found = classified(work, cluster)
    wrong = [
        (record, found.get(record.physical_offset))
        for record in work.records
        if found.get(record.physical_offset) != record.reason
    ]
    assert not wrong
    assert len(found) == len(work.records)


def test_completion_order_of_tasks_does_not_affect_results(work: Workload) -> None:
    messages = shuffled(plain_messages(work.path), 5)
    assert reasons(messages, positions_of(work), options_of(work), cluster=MANY) == classified(work)


def test_workload_contains_each_reason(work: Workload) -> None:
    there = {record.reason for record in work.records}
    wanted = {"delivered", "transaction_settled", "topic_deleted", "consumed", "superseded", "expired", "pending",
              "half_pending", "operation_needed", "unread", "retained"}  # fmt: skip
    assert wanted <= there
    assert len({record.segment for record in work.records}) >= 3


def test_sums_by_topic_segment_and_reason_are_exact(rows: list[dict[str, Any]], work: Workload) -> None:
    found: Counter[tuple[object, ...]] = Counter()
    for row in rows:
        found[row["topic"], row["segment"], row["reason"]] += row["bytes"]
    assert found == work.bytes_by("topic", "segment", "reason")
    assert all(row["dead"] == (row["reason"] in compaction.DEAD_REASONS) for row in rows)
    assert sum(row["messages"] for row in rows) == len(work.records)


def test_plan_reclaims_dead_bytes_except_in_the_active_segment(rows: list[dict[str, Any]], work: Workload) -> None:
    names = ("segment", "dead", "reason", "messages", "bytes")
    sums = [Sum(**{name: row[name] for name in names}) for row in rows]
    plan = make_plan(sums, min_dead_ratio=0)
    active = max(record.segment for record in work.records)
    old = [record for record in work.records if record.segment != active]
    assert plan.reclaimable_bytes == sum(r.size for r in old if r.reason in compaction.DEAD_REASONS)
    touched = {each.segment for each in plan.segments if each.action in (Action.DROP, Action.REWRITE)}
    assert plan.copied_bytes == sum(r.size for r in old if r.segment in touched and r.reason in compaction.LIVE_REASONS)
    pending = [r for r in old if r.reason in ("pending", "half_pending", "lost")]
    assert sum(each.pinning_bytes for each in plan.pins) == sum(r.size for r in pending)


def test_tools_group_and_keys_are_ignored_by_default(tmp_path: Path) -> None:
    work = Workload(tmp_path / "store")
    sent = [work.send("Kept", 0, "retained", keys="same") for _ in range(3)]
    work.consume("TOOLS_CONSUMER", "Kept", 0, 3)
    work.close()
    assert list(classified(work).values()) == ["retained"] * len(sent)


def test_message_is_unread_if_one_group_has_not_read_its_queue(tmp_path: Path) -> None:
    work = Workload(tmp_path / "store")
    for queue_id in (0, 1):
        work.send("Read", queue_id, "consumed" if queue_id == 0 else "unread")
    work.consume("a", "Read", 0, 1)
    work.consume("a", "Read", 1, 1)
    work.consume("b", "Read", 0, 1)
    work.close()
    assert list(classified(work).values()) == ["consumed", "unread"]


def test_queue_without_an_offset_of_any_group_is_unread(tmp_path: Path) -> None:
    work = Workload(tmp_path / "store")
    for queue_id in (0, 1):
        work.send("Read", queue_id, "consumed" if queue_id == 0 else "unread")
    work.send("Assigned", 0, "unread")
    work.consume("a", "Read", 0, 1)
    work.consumed["Assigned", "a"] = {}
    work.close()
    assert list(classified(work).values()) == [each.reason for each in work.records]


def test_consumed_messages_within_the_retention_are_replayable(tmp_path: Path) -> None:
    work = Workload(tmp_path / "store")
    old = work.send("Read", 0, "consumed")
    work.now_ms += (RETENTION_HOURS + 1) * 3_600_000
    new = work.send("Read", 0, "consumed")
    work.send("Read", 0, "unread")
    work.consume("a", "Read", 0, 2)
    work.close()
    found = run_stages(plain_messages(work.path), positions_of(work), options_of(work)).rows("reasons")
    assert {(row["reason"], row["replayable"]): row["bytes"] for row in found if row["dead"]} == {
        ("consumed", False): old.size, ("consumed", True): new.size
    }  # fmt: skip


def test_empty_store_has_no_sums(tmp_path: Path) -> None:
    work = Workload(tmp_path / "store")
    work.close()
    out = tmp_path / "out"
    found = run_stages(plain_messages(work.path), positions_of(work), options_of(work), cluster=MANY, out=out)
    assert found.rows("reasons") == []
    assert found.topics == 0
    assert [table(out, name) for name in ("compaction", "delay", "traffic")] == [[], [], []]
    assert make_plan([]).segments == ()
