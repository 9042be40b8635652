"""Crashes of the operator while groups get, replace and lose replicas: the next process continues."""

from collections.abc import Callable

import pytest
from delaymq_operator_testing.fakes.world import FakeWorld
from delaymq_operator_testing.worlds.replicated import MEMBERS, claim_annotation, group_of, reached, watch_addresses
from delaymq_testing.repetitions import DEATHS_SHARE, one_in

AFTER = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


def made(replicas: int) -> FakeWorld:
    world = FakeWorld()
    world.create(replicasPerGroup=replicas)
    world.run()
    watch_addresses(world)
    return world


def add(world: FakeWorld) -> None:
    world.change(replicasPerGroup=2)


def remove(world: FakeWorld) -> None:
    world.change(replicasPerGroup=1)


def roll(world: FakeWorld) -> None:
    world.change(flush="Sync")


def history(change: Callable[[FakeWorld], None], dies_at: int | None, after: bool) -> FakeWorld:
    """Return the world after a change during which the operator crashed at its n-th call."""
    world = made(1 if change is add else 2)
    world.calls, world.dies_at, world.dies_after = [], dies_at, after
    started = len(world.kube.started)
    change(world)
    world.idle(1)
    world.run()
    world.idle(15)
    assert world.settled
    assert world.failures == []
    again = world.kube.started[started:]
    assert len(again) == len(set(again)), "a pod was restarted twice"
    left = MEMBERS[: world.broker["spec"]["replicasPerGroup"]]
    assert [name for name in world.names("Pod") if "broker" in name] == left
    assert [claim_annotation(world, name) for name in left] == [str(len(left))] * len(left)
    assert reached(world, "demo-broker-0") == {group_of(world).master}
    return world


@AFTER
@pytest.mark.parametrize("change", [add, remove, roll], ids=lambda change: change.__name__)
def test_change_has_same_outcome_wherever_operator_crashes(change: Callable[[FakeWorld], None], after: bool) -> None:
    calls = history(change, None, after).calls
    moments = [number for number, label in enumerate(calls, 1) if calls[: number - 1].count(label) < 3]
    assert len(moments) > 10
    for dies_at in one_in(DEATHS_SHARE, moments):
        assert history(change, dies_at, after).deaths == 1


@AFTER
def test_creation_has_same_outcome_wherever_operator_crashes(after: bool) -> None:
    for dies_at in range(1, 300):
        world = FakeWorld(dies_at=dies_at, dies_after=after)
        world.create(replicasPerGroup=2)
        world.run()
        assert sorted(world.kube.started) == [*MEMBERS[:2], "demo-namesrv-0"]
        assert group_of(world).history == [(1, MEMBERS[0])]
        assert reached(world, "demo-broker-0") == {MEMBERS[0]}
        if not world.deaths:
            return
    raise AssertionError("it never made it without dying")
