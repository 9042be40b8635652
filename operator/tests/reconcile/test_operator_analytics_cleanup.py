"""Clean-up of analytics objects: history limits, manual deletion, removed field, deleted Broker."""

from delaymq_operator_testing.worlds.analysed import analyse, analysed, applications, ended, group, made, ready, told


def test_manually_deleted_application_fails_and_its_driver_is_deleted() -> None:
    world = analysed()
    world.spark.last = "RUNNING"
    world.annotate(analyze="1")
    world.run(lambda: told(world).get("state") == "Running")
    world.kube.remove("SparkApplication", "default", applications(world)[0])
    world.run(lambda: ended(world))
    world.idle(3)
    assert "was deleted" in group(world)["message"]
    assert not [name for name in world.names("Pod") if name.endswith("-driver")]
    assert len(made(world)) == 1


def test_group_removed_during_run_is_dropped_from_run() -> None:
    world = analysed(size=2)
    world.spark.last = "RUNNING"
    world.annotate(analyze="1")
    world.run(lambda: told(world).get("state") == "Running")
    world.spark.last = "COMPLETED"
    world.run(lambda: group(world, 1).get("state") == "Submitted")
    world.spark.last = "RUNNING"
    world.change(size=1)
    world.run(lambda: ended(world), ticks=100)
    assert [each["group"] for each in told(world)["groups"]] == [0]
    assert told(world)["state"] == "Succeeded"
    assert told(world)["messages"] == 100
    world.idle(5)
    assert applications(world) == [f"demo-analytics-0-{told(world)['run']}"]


def test_figures_of_removed_group_are_dropped() -> None:
    world = analysed(size=2)
    analyse(world)
    assert told(world)["messages"] == 200
    world.change(size=1)
    world.run()
    assert told(world)["messages"] == 100


def test_removing_analytics_field_during_run_deletes_all_objects() -> None:
    world = analysed()
    analyse(world)
    world.spark.last = "RUNNING"
    world.annotate(analyze="2")
    world.run(lambda: told(world).get("state") == "Running")
    world.change(analytics=None)
    world.run(lambda: "analytics" not in world.status)
    world.idle(3)
    assert ready(world) == {}
    assert applications(world) == world.names("AnalyticsResult") == world.names("RoleBinding") == []
    assert not [name for name in world.names("Pod") if name.endswith("-driver")]
    assert world.settled


def test_invalid_spec_deletes_nothing() -> None:
    world = analysed()
    analyse(world)
    before = told(world)
    world.change(size="many")
    world.idle(10)
    assert told(world) == before
    assert ready(world)["reason"] == "RunSucceeded"
    assert len(applications(world)) == 1


def test_history_limits_bound_number_of_kept_runs() -> None:
    world = analysed(size=2, analytics={"successfulRunsHistoryLimit": 2, "failedRunsHistoryLimit": 1})
    runs = []
    for number in range(4):
        analyse(world, f"good {number}")
        runs.append(told(world)["run"])
        world.idle(3)
    assert {name.rpartition("-")[2] for name in applications(world)} == set(runs[-2:])
    assert len(applications(world)) == len(world.names("AnalyticsResult")) == 4
    world.spark.last = "FAILED"
    for number in range(3):
        analyse(world, f"bad {number}")
        world.idle(3)
    bad = told(world)["run"]
    assert {name.rpartition("-")[2] for name in applications(world)} == {*runs[-2:], bad}
    assert {name.removesuffix("-driver") for name in world.names("Pod") if name.endswith("-driver")} == set(
        applications(world)
    )
    world.change(analytics={"successfulRunsHistoryLimit": 0, "failedRunsHistoryLimit": 0})
    world.run(lambda: applications(world) == [])
    world.idle(2)
    assert "report" not in group(world)
    assert group(world)["messages"] == 100


def test_reported_result_is_kept_although_run_failed_for_another_group() -> None:
    world = analysed(size=2)
    good = world.spark.result
    world.annotate(analyze="1")
    world.run(lambda: group(world).get("state") == "Succeeded")
    world.spark.result = None
    world.run(lambda: ended(world))
    kept = group(world)["report"]
    world.spark.last = "FAILED"
    analyse(world, "2")
    analyse(world, "3")
    world.idle(5)
    assert group(world)["report"] == kept
    assert kept in applications(world)
    world.spark.last, world.spark.result = "COMPLETED", good
    for number in range(5):
        analyse(world, f"good {number}")
        world.idle(3)
    assert kept not in applications(world)


def test_foreign_applications_are_ignored() -> None:
    world = analysed()
    theirs = {
        "kind": "SparkApplication",
        "metadata": {
            "name": "theirs",
            "namespace": "default",
            "labels": {"app.kubernetes.io/instance": "demo", "app.kubernetes.io/component": "analytics"},
        },
        "spec": {},
    }
    world.spark.is_silent = True
    world.kube.put(theirs)
    world.restart_operator()
    world.idle(5)
    world.change(analytics=None)
    world.idle(10)
    assert applications(world) == ["theirs"]


def test_all_objects_are_deleted_with_broker() -> None:
    world = analysed()
    analyse(world)
    world.kube.remove("Broker", "default", "demo")
    for _ in range(5):
        world.tick()
    assert applications(world) == world.names("AnalyticsResult") == []
    assert not [name for name in world.names("Pod") if name.endswith("-driver")]
