"""Sends while a Broker is edited and scaled: none fails as long as one of its groups could take it."""

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
    """A settled Broker and its producers."""
    world = settled(size=size)
    world.idle(15)
    producers = FakeProducers(world, every=every)
    world.idle(5)
    return world, producers


def finish(world: FakeWorld, ticks: int = 600) -> None:
    """Until it is as its spec says, and half a minute longer: that long a stale route may be used."""
    world.idle(1)
    world.run(ticks=ticks)
    world.idle(31)


@pytest.mark.parametrize("pause_s", [1, 3, 6])
def test_a_size_of_one_in_between_restarts_nothing_at_once(pause_s: int) -> None:
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
def test_five_edits_and_four_sizes_within_seconds_fail_no_send(seed: int) -> None:
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


def test_the_group_that_goes_takes_writes_while_the_one_that_stays_is_restarted() -> None:
    world, producers = busy(2)
    before = world.pod_uids()
    world.change(size=1, flush="Sync")
    finish(world)
    assert producers.causes() == {}
    assert world.pod_uids().keys() == {"demo-namesrv-0", "demo-broker-0-0"}
    assert world.pod_uids()["demo-broker-0-0"] != before["demo-broker-0-0"]


def test_a_group_that_waits_to_go_takes_writes_again_for_a_restart() -> None:
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


def test_a_group_that_stays_after_all_takes_writes_before_another_is_restarted() -> None:
    """Withdrawn when it was to go, it is the only one that could help."""
    world, producers = busy(2)
    world.change(size=1)
    world.run(lambda: ("withdraw", "demo-broker-1-0") in world.brokers.calls)
    world.idle(3)
    world.annotate(restart="1")
    world.change(size=2)
    finish(world)
    assert producers.causes() == {}


def test_producers_that_send_now_and_then_meet_one_group_that_refuses_at_most() -> None:
    world, producers = busy(3, every=7)
    world.change(size=1)
    finish(world)
    assert producers.sent > 0
    assert producers.causes() == {}
    assert world.status["size"] == 1
