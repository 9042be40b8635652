"""Compaction plans keep the copy that proves a delivery while they keep the delayed record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from delaymq_spark.jobs.columns import where
from delaymq_spark.jobs.compaction import CompactionOptions
from delaymq_spark.jobs.plan import Action, PlannedSegment, Proof, Sum, make_plan
from delaymq_spark.jobs.results import Aggregates
from delaymq_spark.store.positions import read_positions
from delaymq_spark_testing.plain_rows import plain_messages
from delaymq_spark_testing.stages import MANY, ONE, Cluster, run_stages
from delaymq_spark_testing.workload import HOUR_MS, Workload

pytestmark = pytest.mark.core


def sums(segment: int, *, dead: int, live: int) -> list[Sum]:
    return [
        Sum(segment=segment, dead=is_dead, reason="expired" if is_dead else "retained", messages=1, bytes=size)
        for is_dead, size in ((True, dead), (False, live))
        if size
    ]


def store_with_a_pinned_origin(path: Path) -> Workload:
    """Write a store in which a delivered record is in a live segment, and its copy in a dead one."""
    work = Workload(path)
    origin = work.delay(1, "Later", 0)
    while work.records[-1].physical_offset < 14_000:
        work.delay(18, "Later", 0)
    while work.records[-1].segment == origin.segment:
        work.send("Old", 0, "expired")
    work.now_ms = origin.due_ms
    copy = work.deliver(origin, "expired")
    while work.records[-1].segment == copy.segment:
        work.send("Old", 0, "expired")
    for _ in range(200):
        work.send("Old", 0, "expired")
    work.now_ms += 200 * HOUR_MS
    work.send("New", 0, "retained")
    work.set_delay_offsets()
    work.close()
    assert copy.segment > origin.segment
    return work


@pytest.mark.parametrize("cluster", [ONE, MANY], ids=["one task", "many tasks"])
def test_copy_is_kept_while_its_origin_is_kept(tmp_path: Path, cluster: Cluster) -> None:
    work = store_with_a_pinned_origin(tmp_path / "store")
    copy = next(each for each in work.records if each.topic == "Later")
    options = CompactionOptions(as_of_ms=work.now_ms)
    messages, positions = plain_messages(work.path), read_positions(work.path)
    found = run_stages(messages, positions, options, cluster=cluster)
    plan = {each.segment: each for each in planned(found)}
    assert plan[0].action is Action.KEEP
    assert plan[copy.segment].action is Action.REWRITE
    assert (plan[copy.segment].kept_bytes, plan[copy.segment].copied_bytes) == (copy.size, copy.size)
    gone = {each.segment for each in plan.values() if each.action is Action.DROP}
    assert gone
    left = where(messages, np.array([segment not in gone for segment in messages["segment"].to_pylist()]))
    (whole,) = run_stages(left, positions, options, cluster=cluster).rows("whole")
    assert (whole["lost"], whole["delivered"]) == (0, 1)


def planned(found: Aggregates) -> tuple[PlannedSegment, ...]:
    given = [
        Sum(
            segment=row["segment"], dead=row["dead"], reason=row["reason"], messages=row["messages"], bytes=row["bytes"]
        )
        for row in found.rows("reasons")
    ]
    proofs = [
        Proof(segment=row["segment"], origin_segment=row["origin_segment"], bytes=row["bytes"])
        for row in found.rows("proofs")
    ]
    return make_plan(given, proofs=proofs).segments


def test_segment_kept_for_a_copy_may_require_keeping_further_copies() -> None:
    given = [
        *sums(0, dead=1, live=99), *sums(1, dead=30, live=70), *sums(2, dead=100, live=0), *sums(3, dead=10, live=0),
    ]  # fmt: skip
    alone = {each.segment: each.action for each in make_plan(given).segments}
    assert alone == {0: Action.KEEP, 1: Action.REWRITE, 2: Action.DROP, 3: Action.ACTIVE}
    proofs = [Proof(segment=1, origin_segment=0, bytes=10), Proof(segment=2, origin_segment=1, bytes=40)]
    plan = make_plan(given, proofs=proofs)
    found = {each.segment: (each.action, each.reclaimed_bytes, each.copied_bytes) for each in plan.segments}
    assert found == {
        0: (Action.KEEP, 0, 0), 1: (Action.KEEP, 0, 0), 2: (Action.REWRITE, 60, 40), 3: (Action.ACTIVE, 0, 0)
    }  # fmt: skip


def test_segment_follows_those_that_hold_the_origins_of_its_copies() -> None:
    given = [
        *sums(0, dead=50, live=50),
        *sums(1, dead=90, live=10),
        *sums(2, dead=100, live=0),
        *sums(3, dead=1, live=1),
    ]
    assert [each.segment for each in make_plan(given).segments] == [2, 1, 0, 3]
    proofs = [Proof(segment=2, origin_segment=0, bytes=5), Proof(segment=1, origin_segment=1, bytes=5)]
    plan = make_plan(given, proofs=proofs)
    assert [(each.segment, each.order) for each in plan.segments] == [(1, 1), (0, 2), (2, 3), (3, None)]
