"""Runs of a Broker's analytics in a simulated cluster: triggers, order of groups, pauses, changes."""

import copy

from delaymq_operator_testing.fakes.spark import RESULT, state_of
from delaymq_operator_testing.fakes.world import FakeWorld
from delaymq_operator_testing.worlds.analysed import (
    analyse,
    analysed,
    analytics_requests,
    applications,
    ended,
    events,
    group,
    made,
    ready,
    told,
)


def test_broker_without_analytics_sends_no_requests_for_them() -> None:
    world = FakeWorld()
    world.create()
    world.run()
    world.idle(5)
    assert "analytics" not in world.status
    assert ready(world) == {}
    assert analytics_requests(world) == []


def test_no_requests_are_sent_while_no_run_is_due() -> None:
    world = analysed(analytics={"schedule": "0 3 * * *"})
    assert analytics_requests(world) == [("list", "SparkApplication", "")]
    world.kube.requests.clear()
    world.idle(100)
    assert analytics_requests(world) == []
    assert (ready(world)["status"], ready(world)["reason"]) == ("Unknown", "NoRunYet")
    assert told(world)["nextScheduleTime"] in ready(world)["message"]


def test_annotation_starts_one_run_and_figures_are_reported() -> None:
    world = analysed()
    analyse(world)
    status = told(world)
    assert (status["state"], status["analyzed"]) == ("Succeeded", "1")
    assert status["application"] == applications(world)[0] == f"demo-analytics-0-{status['run']}"
    for figure in ("messages", "totalBytes", "liveBytes", "deadBytes", "reclaimableBytes", "pending", "lost"):
        assert status[figure] == group(world)[figure] == RESULT[figure]
    assert status["worstLatenessMs"] == 12
    assert group(world)["p99LatenessMs"] == 9
    assert group(world)["skipped"] == 0
    assert group(world)["report"] == status["application"]
    assert group(world)["startedAt"] < group(world)["completedAt"]
    assert (ready(world)["status"], ready(world)["reason"]) == ("True", "RunSucceeded")
    assert len(events(world, "AnalyticsSucceeded")) == 1
    assert world.analysed == ["succeeded"]
    world.idle(30)
    assert len(made(world)) == 1
    assert world.settled


def test_each_new_annotation_value_starts_run_even_if_used_before() -> None:
    world = analysed()
    for text in ("x", "y", "x"):
        analyse(world, text)
    assert len(set(made(world))) == 3
    world.annotate(analyze="x" * 5000)
    world.run(lambda: len(made(world)) == 4)
    world.run(lambda: ended(world))
    world.idle(20)
    assert len(made(world)) == 4
    assert len(told(world)["analyzed"]) < 300


def test_groups_are_analysed_sequentially_and_summed() -> None:
    world = analysed(size=3)
    analyse(world)
    assert made(world) == [f"demo-analytics-{index}-{told(world)['run']}" for index in range(3)]
    assert world.spark.most_at_once == 1
    assert told(world)["messages"] == 300
    assert told(world)["worstLatenessMs"] == 12
    assert [each["name"] for each in told(world)["groups"]] == ["demo-0", "demo-1", "demo-2"]


def test_paused_broker_starts_no_run_but_follows_running_one() -> None:
    world = analysed(size=2)
    world.spark.last = "RUNNING"
    world.annotate(analyze="1")
    world.run(lambda: told(world).get("state") == "Running")
    world.change(paused=True)
    world.spark.last = "COMPLETED"
    world.idle(30)
    assert group(world)["state"] == "Succeeded"
    assert len(made(world)) == 1
    world.annotate(analyze="2")
    world.idle(10)
    world.change(paused=False)
    world.run(lambda: len(made(world)) == 4, ticks=100)


def test_deadline_that_passes_during_pause_is_enforced_without_busy_loop() -> None:
    world = analysed(analytics={"deadlineSeconds": 60})
    world.spark.last = "RUNNING"
    world.annotate(analyze="1")
    world.run(lambda: told(world).get("state") == "Running")
    world.change(paused=True)
    world.idle(100)
    assert told(world)["state"] == "Running"
    outcome = world.reconcile()
    assert outcome is not None
    assert outcome.requeue_after_s is not None
    assert outcome.requeue_after_s >= world.settings.progress_interval_s
    world.change(paused=False)
    world.run(lambda: ended(world))
    assert "DeadlineExceeded" in group(world)["message"]


def test_read_write_once_pod_volume_is_read_through_http_and_reported() -> None:
    world = analysed(analytics={"read": "Volume"})
    claim = copy.deepcopy(world.existing("PersistentVolumeClaim", "store-demo-broker-0-0"))
    claim["spec"]["accessModes"] = ["ReadWriteOncePod"]
    world.kube.put(claim)
    analyse(world)
    [application] = [world.existing("SparkApplication", name) for name in applications(world)]
    assert "http://demo-broker-0.default.svc:8080" in application["spec"]["arguments"]
    assert "ReadWriteOncePod" in ready(world)["message"]


def test_running_application_is_not_changed() -> None:
    world = analysed()
    world.spark.last = "RUNNING"
    world.annotate(analyze="1")
    world.run(lambda: told(world).get("state") == "Running")
    generation = world.existing("SparkApplication", applications(world)[0])["metadata"]["generation"]
    world.change(analytics={"driver": {"memory": "3g"}})
    world.idle(20)
    assert world.existing("SparkApplication", applications(world)[0])["metadata"]["generation"] == generation
    assert state_of(world.existing("SparkApplication", applications(world)[0])) == "RUNNING"
