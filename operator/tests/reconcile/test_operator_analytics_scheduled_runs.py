"""When a Broker's analytics run: at the times of a schedule, once each, whatever the clock or a person does."""

import pytest
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.worlds.analysed import analyse, analysed, ended, events, made, ready, told

HOUR_S = 3600


def test_scheduled_runs_come_at_their_times() -> None:
    world = analysed(analytics={"schedule": "*/5 * * * *"})
    first = told(world)["nextScheduleTime"]
    world.run(lambda: ended(world), ticks=1000)
    assert told(world)["lastScheduleTime"] == first
    assert int(told(world)["run"]) * 60 * 1000 <= world.now_ms
    assert told(world)["nextScheduleTime"] > first
    world.run(lambda: len(made(world)) == 2, ticks=1000)
    assert told(world)["lastScheduleTime"] > first


def test_of_missed_times_only_the_latest_is_run() -> None:
    world = analysed(analytics={"schedule": "0 * * * *"})
    world.now_ms += 50 * HOUR_S * 1000
    world.restart_operator()
    world.run(lambda: ended(world))
    world.idle(60)
    assert len(made(world)) == 1
    hour_ms = world.now_ms - world.now_ms % (HOUR_S * 1000)
    assert told(world)["run"] == f"{hour_ms // 60_000:08d}"


def test_neither_a_new_schedule_nor_the_end_of_a_suspension_begins_a_run() -> None:
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


def test_while_suspended_runs_on_demand_work() -> None:
    world = analysed(analytics={"schedule": "* * * * *", "suspend": True})
    world.idle(130)
    assert made(world) == []
    analyse(world)
    assert told(world)["state"] == "Succeeded"


def test_a_time_that_comes_while_a_run_goes_on_is_left_out_and_said() -> None:
    world = analysed(analytics={"schedule": "* * * * *"})
    world.spark.last = "RUNNING"
    world.run(lambda: told(world).get("state") == "Running")
    world.idle(150)
    assert len(made(world)) == 1
    assert len(events(world, "AnalyticsSkipped")) >= 2
    world.spark.last = "COMPLETED"
    world.run(lambda: len(made(world)) == 2)


def test_a_clock_that_is_set_back_repeats_no_run() -> None:
    world = analysed(analytics={"schedule": "*/10 * * * *"})
    world.run(lambda: ended(world), ticks=1000)
    world.now_ms -= 1500 * 1000
    world.idle(1400)
    assert len(made(world)) == 1


@pytest.mark.parametrize(
    ("analytics", "said"),
    [({"schedule": "0 3 31 2 *"}, "schedule"), ({"schedule": "0 3 * * *", "timeZone": "Europe/Berlyn"}, "timeZone")],
)
def test_a_schedule_that_cannot_be_meant_is_said_and_runs_on_demand_go_on(analytics: Manifest, said: str) -> None:
    world = analysed(analytics=analytics)
    assert ready(world)["reason"] == "InvalidSchedule"
    assert said in ready(world)["message"]
    assert world.settled
    analyse(world)
    assert told(world)["state"] == "Succeeded"
    assert ready(world)["reason"] == "InvalidSchedule"
