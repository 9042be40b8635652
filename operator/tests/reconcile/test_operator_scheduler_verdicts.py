"""Verdicts on the delay scheduler after a restart of a broker."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from delaymq.api_types.broker import About, Drain
from delaymq.api_types.delay import Correction, Delay, DelayLevel, TimedMessages
from delaymq_operator.api.broker_status import GroupStatus, LevelStatus, ResumedStatus
from delaymq_operator.reconcile.broker.model.memory import SeenOffsets
from delaymq_operator.reconcile.broker.observe.scheduler import judge
from delaymq_operator_testing.fakes.world import FakeWorld
from msgspec.structs import replace

NOW_MS = 1_790_000_000_000


def info(
    offsets: Mapping[int, int], *, boot: str = "boot-2", store: str = "store-1", corrected: Iterable[Correction] = ()
) -> About:
    return About(
        as_of_ms=NOW_MS,
        version="1",
        broker_name="demo-0",
        cluster_name="demo",
        store_id=store,
        boot_id=boot,
        started_at_ms=NOW_MS,
        ready=True,
        drain=Drain(mode="none", since_ms=NOW_MS),
        delay=Delay(
            levels=tuple(
                DelayLevel(level=level, delay_ms=1, in_table=True, offset=offset, max_offset=offset, pending=0)
                for level, offset in offsets.items()
            ),
            corrected=tuple(corrected),
        ),
    )


def before(offsets: Mapping[int, int], *, boot: str = "boot-1", store: str = "store-1") -> GroupStatus:
    return GroupStatus(
        name="demo-0",
        group=0,
        store_id=store,
        delay=tuple(LevelStatus(level=level, offset=offset) for level, offset in offsets.items()),
        resumed=ResumedStatus(at="2026-01-01T00:00:00Z", boot_id=boot, verdict="Intact"),
    )


STALE = Correction(level=1, from_offset=90, to_offset=100, reason="stale")


@pytest.mark.parametrize(
    ("last", "seen", "now", "verdict", "corrected"),
    [
        (None, None, info({1: 5}), "Intact", []),
        (before({1: 100}), None, info({1: 100}), "Intact", []),
        (before({1: 100}), None, info({1: 120, 2: 1}), "Intact", []),
        (before({1: 100}), None, info({1: 100}, corrected=(STALE,)), "Corrected", [(1, 90, 100, "stale")]),
        (before({1: 100}), None, info({1: 40}), "WentBack", [(1, 100, 40, "went-back")]),
        (
            before({1: 30}),
            SeenOffsets(boot_id="boot-1", offsets={1: 100}),
            info({1: 40}),
            "WentBack",
            [(1, 100, 40, "went-back")],
        ),
        (before({1: 100}), SeenOffsets(boot_id="boot-2", offsets={1: 999}), info({1: 100}), "Intact", []),
        (before({1: 100, 7: 3}), None, info({1: 100}), "Intact", []),
        (
            before({1: 100, 7: 3}),
            None,
            info({}, store="other"),
            "WentBack",
            [(1, 100, 0, "other-store"), (7, 3, 0, "other-store")],
        ),
        (before({}), None, info({}, store="other"), "Intact", []),
    ],
    ids=[
        "never seen",
        "as it was",
        "further",
        "stale file",
        "behind the status",
        "behind what was seen since",
        "seen in this very start",
        "a level went out of use",
        "another store",
        "another store, nothing lost",
    ],
)
def test_restart_is_judged_by_earlier_observations(
    last: GroupStatus | None, seen: SeenOffsets | None, now: About, verdict: str, corrected: list[tuple[Any, ...]]
) -> None:
    found = judge(last, seen, now, NOW_MS)
    assert found.verdict == verdict
    assert [(each.level, each.from_offset, each.to_offset, each.reason) for each in found.corrected] == corrected
    assert found.boot_id == now.boot_id


def test_restart_reports_all_pending_messages() -> None:
    now = info({1: 5, 2: 5})
    levels = tuple(replace(level, pending=3) for level in now.delay.levels)
    delay = replace(now.delay, levels=levels, timed=TimedMessages(pending=40))
    assert judge(None, None, replace(now, delay=delay), NOW_MS).pending == 46
    assert judge(None, None, replace(now, delay=replace(delay, timed=None)), NOW_MS).pending == 6


def test_judged_restart_keeps_verdict() -> None:
    known = before({1: 100}, boot="boot-2")
    assert judge(known, None, info({1: 5}), NOW_MS) is known.resumed


@pytest.fixture
def world() -> FakeWorld:
    found = FakeWorld()
    found.create(size=2)
    found.run()
    found.kube.events.clear()
    return found


def kill(world: FakeWorld, group: int = 0) -> None:
    pod = world.existing("Pod", f"demo-broker-{group}-0")
    world.kube.objects.pop(("Pod", "default", pod["metadata"]["name"]))


def verdicts(world: FakeWorld) -> list[str]:
    return [group["resumed"]["verdict"] for group in world.status["groups"]]


def test_recovery_after_crash_is_reported_as_corrected(world: FakeWorld) -> None:
    world.brokers.stores["store-demo-broker-0-0"].corrected = (STALE,)
    kill(world)
    world.run(lambda: verdicts(world) == ["Corrected", "Intact"])
    assert world.condition("SchedulerIntact")["status"] == "False"
    assert world.reason("SchedulerIntact") == "Corrected"
    assert "level 1 from 90 to 100 (stale)" in world.condition("SchedulerIntact")["message"]
    told = [(kind, reason) for kind, reason, _ in world.kube.events if reason.startswith("Scheduler")]
    assert told == [("Normal", "SchedulerCorrected")]
    world.idle(60)
    world.restart_operator()
    world.idle(30)
    assert [event for event in world.kube.events if event[1].startswith("Scheduler")][1:] == []


def test_regressed_store_is_detected_by_restarted_operator(world: FakeWorld) -> None:
    world.idle(70)
    world.restart_operator()
    world.brokers.stores["store-demo-broker-0-0"].offsets[1] = 2
    kill(world)
    world.run(lambda: verdicts(world)[0] == "WentBack")
    assert world.reason("SchedulerIntact") == "WentBack"
    assert "level 1 from 10 to 2" in world.condition("SchedulerIntact")["message"]
    assert any(event[:2] == ("Warning", "SchedulerWentBack") for event in world.kube.events)


def test_last_observed_offsets_stay_in_status_while_broker_is_down(world: FakeWorld) -> None:
    world.kube.unready.add("demo-broker-0-0")
    kill(world)
    world.idle(1)
    group = world.status["groups"][0]
    assert group["ready"] is False
    assert [level["offset"] for level in group["delay"]] == [10, 4]


def test_clean_restart_restores_intact_verdict(world: FakeWorld) -> None:
    store = world.brokers.stores["store-demo-broker-0-0"]
    store.corrected = (STALE,)
    kill(world)
    world.run(lambda: world.reason("SchedulerIntact") == "Corrected")
    store.corrected = ()
    world.annotate(restart="1")
    world.idle(1)
    world.run()
    assert world.reason("SchedulerIntact") == "Intact"


def test_status_with_maximum_levels_and_groups_fits_object_size_limit() -> None:
    world = FakeWorld()
    world.create(size=32)
    world.run()
    for number, store in enumerate(world.brokers.stores.values()):
        store.offsets = dict.fromkeys(range(1, 1001), 9_000_000_000)
        store.corrected = tuple(replace(STALE, level=level) for level in range(1, 1001))
        kill(world, number)
    world.run(lambda: verdicts(world) == ["Corrected"] * 32)
    assert len(json.dumps(world.status)) < 1_000_000
    assert len(world.condition("SchedulerIntact")["message"]) <= 2_000
