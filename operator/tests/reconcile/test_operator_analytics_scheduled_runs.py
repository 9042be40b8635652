"""Scheduled runs of a Broker's analytics: once per due time, despite outages and clock changes."""

import pytest
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.worlds.analysed import analyse, analysed, ended, events, made, ready, told

HOUR_S = 3600


def test_scheduled_runs_start_at_due_times() -> None:
    world = analysed(analytics={"schedule": "*/5 * * * *"})
    first = told(world)["nextScheduleTime"]
    world.run(lambda: ended(world), ticks=1000)
    assert told(world)["lastScheduleTime"] == first
    assert int(told(world)["run"]) * 60 * 1000 <= world.now_ms
    assert told(world)["nextScheduleTime"] > first
    world.run(lambda: len(made(world)) == 2, ticks=1000)
    assert told(world)["lastScheduleTime"] > first


def test_only_latest_missed_time_is_run() -> None:
    world = analysed(analytics={"schedule": "0 * * * *"})
    world.now_ms += 50 * HOUR_S * 1000
    world.restart_operator()
    world.run(lambda: ended(world))
    world.idle(60)
    assert len(made(world)) == 1
    hour_ms = world.now_ms - world.now_ms % (HOUR_S * 1000)
    assert told(world)["run"] == f"{hour_ms // 60_000:08d}"


def test_new_schedule_or_end_of_suspension_starts_no_run() -> None:
    world = analysed(analytics={"schedule": "0 3 * * *", "suspend": True})
    assert "nextScheduleTime" not in told(world)
    world.now_ms += 48 * HOUR_S * 1000
    world.idle(3)
    world.change(analytics={"schedule": "0 3 * * *"})
    world.idle(5)
    world.change(analytics={"schedule": "30 */2 * * *"})
    world.idle(15)
    assert made(world) == []
    assert told(world)["nextScheduleTime"]


def test_suspended_schedule_allows_runs_on_demand() -> None:
    world = analysed(analytics={"schedule": "* * * * *", "suspend": True})
    world.idle(130)
    assert made(world) == []
    analyse(world)
    assert told(world)["state"] == "Succeeded"


def test_due_time_during_run_is_skipped_and_reported() -> None:
    world = analysed(analytics={"schedule": "* * * * *"})
    world.spark.last = "RUNNING"
    world.run(lambda: told(world).get("state") == "Running")
    world.idle(150)
    assert len(made(world)) == 1
    assert len(events(world, "AnalyticsSkipped")) >= 2
    world.spark.last = "COMPLETED"
    world.run(lambda: len(made(world)) == 2)


def test_clock_set_back_repeats_no_run() -> None:
    world = analysed(analytics={"schedule": "*/10 * * * *"})
    world.run(lambda: ended(world), ticks=1000)
    world.now_ms -= 1500 * 1000
    world.idle(1400)
    assert len(made(world)) == 1


@pytest.mark.parametrize(
    ("analytics", "said"),
    [({"schedule": "0 3 31 2 *"}, "schedule"), ({"schedule": "0 3 * * *", "timeZone": "Europe/Berlyn"}, "timeZone")],
)
def test_invalid_schedule_is_reported_and_allows_runs_on_demand(analytics: Manifest, said: str) -> None:
    world = analysed(analytics=analytics)
    assert ready(world)["reason"] == "InvalidSchedule"
    assert said in ready(world)["message"]
    assert world.settled
    analyse(world)
    assert told(world)["state"] == "Succeeded"
    assert ready(world)["reason"] == "InvalidSchedule"
