"""Sends while a Broker is changed and scaled: none fails while a group could accept it."""

import random
from typing import Any

import pytest
from delaymq_operator_testing.fakes.producers import FakeProducers
from delaymq_operator_testing.fakes.world import FakeWorld
from delaymq_operator_testing.worlds.settled import settled

EDITS: tuple[dict[str, Any], ...] = (
    {"flush": "Sync"},
    {"resources": {"limits": {"memory": "1Gi"}}},
    {"podTemplate": {"labels": {"team": "orders"}}},
    {"config": {"fileReservedTime": "9"}},
    {"config": {"regionId": "eu"}},
)


def busy(size: int, *, every: int = 1) -> tuple[FakeWorld, FakeProducers]:
    """Return a settled Broker and its producers."""
    world = settled(size=size)
    world.idle(15)
    producers = FakeProducers(world, every=every)
    world.idle(5)
    return world, producers


def finish(world: FakeWorld, ticks: int = 600) -> None:
    """Run until the Broker is settled, and then for another 31 s, in which producers may still use stale routes."""
    world.idle(1)
    world.run(ticks=ticks)
    world.idle(31)


@pytest.mark.parametrize("pause_s", [1, 3, 6])
def test_brief_size_reduction_during_rollout_fails_no_send(pause_s: int) -> None:
    world, producers = busy(2)
    world.change(flush="Sync")
    world.idle(1)
    world.change(size=1)
    world.idle(pause_s)
    world.change(size=2)
    finish(world)
    assert producers.causes() == {}
    assert world.status["size"] == 2


@pytest.mark.parametrize("seed", range(4))
def test_rapid_edits_and_size_changes_fail_no_send(seed: int) -> None:
    chosen = random.Random(seed)
    world, producers = busy(2)
    sizes: list[dict[str, Any]] = [{"size": size} for size in (3, 1, 3, 2)]
    steps: list[dict[str, Any]] = [step for pair in zip(EDITS, [*sizes, {}], strict=True) for step in pair]
    for step in steps:
        world.change(**step)
        world.idle(chosen.choice((0, 1, 2, 5)))
    finish(world)
    assert producers.causes() == {}
    assert world.status["size"] == 2
    assert len({broker.settings["flushDiskType"] for broker in world.brokers.running.values()}) == 1


def test_surplus_group_accepts_writes_while_remaining_one_restarts() -> None:
    world, producers = busy(2)
    before = world.pod_uids()
    world.change(size=1, flush="Sync")
    finish(world)
    assert producers.causes() == {}
    assert world.pod_uids().keys() == {"demo-namesrv-0", "demo-broker-0-0"}
    assert world.pod_uids()["demo-broker-0-0"] != before["demo-broker-0-0"]


def test_waiting_surplus_group_accepts_writes_during_restart() -> None:
    world, producers = busy(2)
    store = world.brokers.stores["store-demo-broker-1-0"]
    store.pending = 1
    world.change(size=1)
    world.run(lambda: world.condition("ScaleInBlocked") != {})
    before = world.pod_uids()["demo-broker-0-0"]
    world.change(flush="Sync")
    world.run(lambda: world.pod_uids().get("demo-broker-0-0") not in (None, before))
    world.run(lambda: world.condition("ScaleInBlocked") != {})
    store.pending = 0
    finish(world)
    assert producers.causes() == {}
    assert world.status["size"] == 1


def test_group_with_cancelled_removal_accepts_writes_before_another_restarts() -> None:
    """Writes were withdrawn from the surplus group, and it is the only other group."""
    world, producers = busy(2)
    world.change(size=1)
    world.run(lambda: ("withdraw", "demo-broker-1-0") in world.brokers.calls)
    world.idle(3)
    world.annotate(restart="1")
    world.change(size=2)
    finish(world)
    assert producers.causes() == {}


def test_infrequent_producers_meet_at_most_one_refusing_group() -> None:
    world, producers = busy(3, every=7)
    world.change(size=1)
    finish(world)
    assert producers.sent > 0
    assert producers.causes() == {}
    assert world.status["size"] == 1
