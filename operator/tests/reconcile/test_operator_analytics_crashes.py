"""Crashes of the operator before or after each call of an analytics run: nothing runs twice or is lost."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.fakes.world import FakeWorld
from delaymq_testing.repetitions import DEATHS_SHARE, one_in

AFTER = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


def settled(size: int = 2, **analytics: Any) -> FakeWorld:
    world = FakeWorld()
    world.others.append(world.spark.tick)
    world.create(size=size, analytics=analytics, networkPolicy={"enabled": True})
    world.run()
    world.idle(3)
    return world


def told(world: FakeWorld) -> Manifest:
    return world.status.get("analytics") or {}


def on_demand(world: FakeWorld) -> None:
    world.annotate(analyze="now")


def on_schedule(world: FakeWorld) -> None:
    world.change(analytics={"schedule": "0 0 1 1 *"})
    world.idle(2)
    body = dict(world.broker)
    body["status"] = dict(body["status"], analytics=dict(told(world), nextScheduleTime="2026-01-01T00:00:00Z"))
    # Simulates a due time that passed while no operator was running.
    world.kube.put(body)
    world.restart_operator()


def by_the_deadline(world: FakeWorld) -> None:
    world.change(analytics={"deadlineSeconds": 60})
    world.spark.last = "RUNNING"
    world.annotate(analyze="now")


def without_the_field(world: FakeWorld) -> None:
    world.annotate(analyze="now")
    world.run(lambda: told(world).get("state") == "Running")
    world.change(analytics=None)


def beyond_the_limits(world: FakeWorld) -> None:
    world.change(analytics={"successfulRunsHistoryLimit": 0})
    for text in ("1", "2"):
        world.annotate(analyze=text)
        world.run(lambda text=text: told(world).get("analyzed") == text and told(world)["state"] == "Succeeded")
    world.annotate(analyze="now")


def has_ended(world: FakeWorld, change: Callable[[FakeWorld], object]) -> bool:
    if change is without_the_field:
        return "analytics" not in world.status
    is_asked = change is on_schedule or told(world).get("analyzed") == "now"
    return is_asked and told(world).get("state") in ("Succeeded", "Failed")


def holds(world: FakeWorld, change: Callable[[FakeWorld], object], started: int) -> None:
    """Assert the final state: no application ran twice, and statuses, results and policies are as expected."""
    ran = world.spark.ran[started:]
    assert len(ran) == len(set(ran))
    assert world.spark.most_at_once == 1
    if change is without_the_field:
        assert world.names("SparkApplication") == world.names("AnalyticsResult") == []
        assert not [name for name in world.names("Pod") if name.endswith("-driver")]
        assert "demo-analytics" not in world.names("NetworkPolicy")
        return
    assert "demo-analytics" in world.names("NetworkPolicy")
    run = told(world)["run"]
    assert [name for name in ran if name.endswith(run)] == [f"demo-analytics-{index}-{run}" for index in range(2)]
    if change is by_the_deadline:
        assert told(world)["state"] == "Failed"
        assert world.condition("AnalyticsReady")["reason"] == "DeadlineExceeded"
        assert world.names("SparkApplication") == []
    else:
        assert told(world)["state"] == "Succeeded"
        assert told(world)["messages"] == 200
        kept = [] if change is beyond_the_limits else sorted(ran)[-2:]
        assert world.names("SparkApplication") == world.names("AnalyticsResult") == kept
    drivers = [name.removesuffix("-driver") for name in world.names("Pod") if name.endswith("-driver")]
    assert drivers == world.names("SparkApplication")


def telling_moments(calls: list[str]) -> list[int]:
    """Return the numbers of the calls to crash at: the first two of each kind, since calls repeat while waiting."""
    seen = Counter[str]()
    moments = []
    for number, label in enumerate(calls, 1):
        seen[label] += 1
        # Other tests cover crashes at queries of brokers.
        if seen[label] <= 2 and not label.startswith("info"):
            moments.append(number)
    return moments


def history(change: Callable[[FakeWorld], object], dies_at: int | None, after: bool) -> FakeWorld:
    """Return the world after a change during which the operator crashed at its n-th call."""
    world = settled()
    world.dies_after = after
    change(world)
    started = len(world.spark.ran) if change is beyond_the_limits else 0
    world.calls, world.dies_at = [], dies_at
    world.run(lambda: has_ended(world, change), ticks=400)
    world.idle(10)
    assert world.failures == []
    holds(world, change, started)
    return world


CHANGES = [on_demand, on_schedule, by_the_deadline, without_the_field, beyond_the_limits]


@AFTER
@pytest.mark.timeout(300)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_run_has_same_outcome_wherever_operator_crashes(change: Callable[[FakeWorld], object], after: bool) -> None:
    moments = telling_moments(history(change, None, after).calls)
    assert len(moments) > 5
    for dies_at in one_in(DEATHS_SHARE, moments):
        assert history(change, dies_at, after).deaths == 1


def test_runs_complete_despite_continual_crashes() -> None:
    world = settled()
    chance = random.Random(1)
    for text in ("1", "2", "3", "now"):
        world.annotate(analyze=text)
        for _ in range(600):
            world.calls, world.dies_at = [], chance.randint(1, 10)
            world.step()
            if told(world).get("analyzed") == text and told(world)["state"] in ("Succeeded", "Failed"):
                break
    assert world.deaths > 30
    world.dies_at = None
    world.idle(5)
    assert len(world.spark.ran) == len(set(world.spark.ran)) == 8
    assert world.spark.most_at_once == 1
    assert (told(world)["state"], told(world)["messages"]) == ("Succeeded", 200)
    assert len(world.names("SparkApplication")) == 6
