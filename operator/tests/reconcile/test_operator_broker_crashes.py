"""Crashes of the operator before or after each call: the next process continues and repeats nothing."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from delaymq_operator_testing.fakes.world import MAX_TICKS, FakeWorld
from delaymq_testing.repetitions import DEATHS_SHARE, one_in

AFTER = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


def settled(size: int = 2, **spec: Any) -> FakeWorld:
    world = FakeWorld()
    world.create(size=size, **spec)
    world.run()
    return world


def roll(world: FakeWorld) -> list[str]:
    world.change(flush="Sync")
    return ["demo-broker-0-0", "demo-broker-1-0"]


def grow(world: FakeWorld) -> list[str]:
    world.change(storage={"size": "20Gi"})
    return []


def scale_in(world: FakeWorld) -> list[str]:
    world.change(size=1)
    return []


def scale_out(world: FakeWorld) -> list[str]:
    world.change(size=3)
    return ["demo-broker-2-0"]


def holds_of(world: FakeWorld, change: Callable[[FakeWorld], object]) -> None:
    """Assert the final state, in addition to being settled."""
    size = world.broker["spec"]["size"]
    assert len([name for name in world.names("Pod") if "broker" in name]) == size
    assert len(world.names("StatefulSet")) == size + 1
    assert all(broker.drain.mode == "none" for broker in world.brokers.running.values())
    if change is grow:
        for name in world.names("PersistentVolumeClaim"):
            assert world.existing("PersistentVolumeClaim", name)["spec"]["resources"]["requests"]["storage"] == "20Gi"
        for group in range(size):
            [claim] = world.existing("StatefulSet", f"demo-broker-{group}")["spec"]["volumeClaimTemplates"]
            assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"


def telling_moments(calls: list[str]) -> list[int]:
    """Return the numbers of the calls to crash at: the first three of each kind, since calls repeat while waiting."""
    seen = Counter[str]()
    moments = []
    for number, label in enumerate(calls, 1):
        seen[label] += 1
        if seen[label] <= 3:
            moments.append(number)
    return moments


def history(change: Callable[[FakeWorld], object], dies_at: int | None, after: bool) -> FakeWorld:
    """Return the world after a change during which the operator crashed at its n-th call."""
    world = settled()
    world.calls, world.dies_at, world.dies_after = [], dies_at, after
    started = len(world.kube.started)
    expected = change(world)
    world.idle(1)
    world.run()
    world.idle(15)
    assert world.settled
    assert world.kube.started[started:] == expected
    assert world.failures == []
    holds_of(world, change)
    return world


@AFTER
@pytest.mark.parametrize("change", [roll, grow, scale_in, scale_out], ids=lambda change: change.__name__)
def test_change_has_same_outcome_wherever_operator_crashes(change: Callable[[FakeWorld], object], after: bool) -> None:
    moments = telling_moments(history(change, None, after).calls)
    assert len(moments) > 5
    for dies_at in one_in(DEATHS_SHARE, moments):
        assert history(change, dies_at, after).deaths == 1


@AFTER
def test_creation_has_same_outcome_wherever_operator_crashes(after: bool) -> None:
    for dies_at in range(1, 200):
        world = FakeWorld(dies_at=dies_at, dies_after=after)
        world.create(size=2)
        world.run()
        assert sorted(world.kube.started) == ["demo-broker-0-0", "demo-broker-1-0", "demo-namesrv-0"]
        assert len(world.names("StatefulSet")) == 3
        if not world.deaths:
            return
    raise AssertionError("it never made it without dying")


def test_rollout_completes_despite_continual_crashes() -> None:
    world = settled()
    started = len(world.kube.started)
    roll(world)
    chance = random.Random(1)
    for _ in range(MAX_TICKS):
        world.calls, world.dies_at = [], chance.randint(1, 12)
        world.step()
        if world.kube.started[started:] == ["demo-broker-0-0", "demo-broker-1-0"] and world.settled:
            break
    assert world.deaths > 10
    assert world.kube.started[started:] == ["demo-broker-0-0", "demo-broker-1-0"]
    assert world.status["readyGroups"] == 2


def test_operator_upgrade_during_volume_growth_restarts_no_pod() -> None:
    for dies_at in range(1, 60):
        world = settled(size=1)
        before = world.pod_uids()
        world.calls, world.dies_at = [], dies_at
        grow(world)
        for _ in range(60):
            world.step()
            if world.deaths:
                world.settings = replace(world.settings, default_image="delaymq/broker:9")
        assert world.pod_uids() == before
        holds_of(world, grow)
        if not world.deaths:
            return
    raise AssertionError("it never grew without dying")
