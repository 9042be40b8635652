"""Reasons of docs/analytics.md for dead and live records, and the compaction plan per segment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from delaymq_spark.jobs import compaction
from delaymq_spark.jobs.plan import PINNING_REASONS, Action, Sum, make_plan
from delaymq_spark.store.positions import read_positions
from delaymq_spark_testing.aged_workload import REASONS, aged_workload
from delaymq_spark_testing.plain_rows import plain_messages
from delaymq_spark_testing.stages import MANY, ONE, reasons
from delaymq_spark_testing.workload import RETENTION_HOURS, Workload, mixed_workload

PAGE = Path(__file__).parents[2] / "docs/analytics.md"


@pytest.fixture(scope="module", params=["aged", "aged otherwise", "mixed"])
def work(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Workload:
    path = tmp_path_factory.mktemp("aged") / "store"
    if request.param == "mixed":
        return mixed_workload(path, seed=11)
    return aged_workload(path, seed=1 if request.param == "aged" else 7)


@pytest.fixture(scope="module", params=[ONE, MANY], ids=["one task", "many tasks"])
def found(request: pytest.FixtureRequest, work: Workload) -> dict[int, str]:
    options = compaction.CompactionOptions(
        as_of_ms=work.now_ms, retention_hours=RETENTION_HOURS, keyed_topics=frozenset({"State"})
    )
    return reasons(plain_messages(work.path), read_positions(work.path), options, cluster=request.param)


def test_each_record_gets_the_expected_reason(found: dict[int, str], work: Workload) -> None:
    wrong = [
        (found.get(each.physical_offset), each)
        for each in work.records
        if found.get(each.physical_offset) != each.reason
    ]
    assert not wrong
    assert len(found) == len(work.records)


def test_every_reason_is_tested(tmp_path: Path) -> None:
    assert {record.reason for record in aged_workload(tmp_path / "store").records} == REASONS
    assert {*compaction.DEAD_REASONS, *compaction.LIVE_REASONS} == REASONS


def test_documentation_names_each_reason() -> None:
    named = set(re.findall(r"`([a-z_]+)`", PAGE.read_text()))
    assert named >= REASONS


@pytest.mark.parametrize("min_dead_ratio", [0.0, 0.25, 0.6, 1.0])
def test_plan_matches_the_workload_in_each_segment(
    found: dict[int, str], work: Workload, min_dead_ratio: float
) -> None:
    given = [(each, found[each.physical_offset]) for each in work.records]
    sums = [
        Sum(
            segment=record.segment,
            dead=reason in compaction.DEAD_REASONS,
            reason=reason,
            messages=1,
            bytes=record.size,
        )
        for record, reason in given
    ]
    plan = make_plan(sums, min_dead_ratio=min_dead_ratio)
    active = max(each.segment for each in work.records)
    planned = {each.segment: each for each in plan.segments}
    assert planned.keys() == {each.segment for each in work.records}
    for segment, each in planned.items():
        inside = [record for record in work.records if record.segment == segment]
        dead = sum(record.size for record in inside if record.reason in compaction.DEAD_REASONS)
        live = sum(record.size for record in inside) - dead
        pinning = [record for record in inside if record.reason in PINNING_REASONS]
        if segment == active:
            action = Action.ACTIVE
        elif live == 0:
            action = Action.DROP
        else:
            action = Action.REWRITE if dead and dead / (dead + live) >= min_dead_ratio else Action.KEEP
        assert each.action == action
        taken = action in (Action.DROP, Action.REWRITE)
        assert (each.reclaimed_bytes, each.copied_bytes) == ((dead, live) if taken else (0, 0))
        assert (each.pinning_messages, each.pinning_bytes) == (len(pinning), sum(record.size for record in pinning))
        assert each.only_pinned == (bool(pinning) and live == each.pinning_bytes)
    assert plan.reclaimable_bytes == sum(each.reclaimed_bytes for each in planned.values())
    orders = [each.order for each in plan.segments if each.order is not None]
    assert orders == list(range(1, len(orders) + 1))
    first_pin = min((s for s, each in planned.items() if each.pinning_messages and s != active), default=None)
    assert plan.pinned_bytes == sum(
        each.dead_bytes for s, each in planned.items() if first_pin is not None and first_pin <= s != active
    )
