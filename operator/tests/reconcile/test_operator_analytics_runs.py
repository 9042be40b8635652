"""A Broker's analytics in a small world: what begins a run, how it is followed, how it ends, and what is told of it."""

import copy
import random

import pytest
from delaymq_operator.reconcile.errors import KubeError
from fakes_spark import RESULT, FakeSpark, state_of
from fakes_world import FakeWorld

HOUR_S = 3600


def analysed(size=1, analytics=None, **spec):
    """A settled Broker that allows analytics, and the Spark operator."""
    world = FakeWorld()
    world.spark = FakeSpark(world.kube)
    world.others.append(world.spark.tick)
    world.create(size=size, analytics={} if analytics is None else analytics, **spec)
    world.run()
    world.idle(3)
    return world


def told(world):
    return world.status.get("analytics") or {}


def group(world, index=0):
    return next((each for each in told(world).get("groups", []) if each["group"] == index), {})


def ready(world):
    return world.condition("AnalyticsReady")


def applications(world):
    return world.names("SparkApplication")


def made(world):
    return [name for kind, _, name in world.kube.made if kind == "SparkApplication"]


def ended(world):
    return told(world).get("state") in ("Succeeded", "Failed")


def analyse(world, text="1"):
    """Asks for a run and waits for its end."""
    before = told(world).get("run")
    world.annotate(analyze=text)
    world.run(lambda: told(world).get("run") != before and ended(world), ticks=8000)
    world.idle(2)


def events(world, reason):
    return [message for _, said, message in world.kube.events if said == reason]


def analytics_requests(world):
    kinds = ("SparkApplication", "AnalyticsResult", "RoleBinding")
    return [request for request in world.kube.requests if request[1] in kinds]


def test_without_the_field_nothing_is_told_and_nothing_asked():
    world = FakeWorld()
    world.create()
    world.run()
    world.idle(5)
    assert "analytics" not in world.status
    assert ready(world) == {}
    assert analytics_requests(world) == []


def test_nothing_is_asked_for_while_no_run_is_due():
    world = analysed(analytics={"schedule": "0 3 * * *"})
    assert analytics_requests(world) == [("list", "SparkApplication", "")]
    world.kube.requests.clear()
    world.idle(100)
    assert analytics_requests(world) == []
    assert (ready(world)["status"], ready(world)["reason"]) == ("Unknown", "NoRunYet")
    assert told(world)["nextScheduleTime"] in ready(world)["message"]


def test_an_annotation_runs_it_once_and_the_figures_are_told():
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


def test_a_new_text_is_a_new_run_also_one_that_was_used_before():
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


def test_groups_are_analysed_one_after_the_other_and_summed():
    world = analysed(size=3)
    analyse(world)
    assert made(world) == [f"demo-analytics-{index}-{told(world)['run']}" for index in range(3)]
    assert world.spark.most_at_once == 1
    assert told(world)["messages"] == 300
    assert told(world)["worstLatenessMs"] == 12
    assert [each["name"] for each in told(world)["groups"]] == ["demo-0", "demo-1", "demo-2"]


def test_scheduled_runs_come_at_their_times():
    world = analysed(analytics={"schedule": "*/5 * * * *"})
    first = told(world)["nextScheduleTime"]
    world.run(lambda: ended(world), ticks=1000)
    assert told(world)["lastScheduleTime"] == first
    assert int(told(world)["run"]) * 60 * 1000 <= world.now_ms
    assert told(world)["nextScheduleTime"] > first
    world.run(lambda: len(made(world)) == 2, ticks=1000)
    assert told(world)["lastScheduleTime"] > first


def test_of_missed_times_only_the_latest_is_run():
    world = analysed(analytics={"schedule": "0 * * * *"})
    world.now_ms += 50 * HOUR_S * 1000
    world.restart_operator()
    world.run(lambda: ended(world))
    world.idle(60)
    assert len(made(world)) == 1
    hour_ms = world.now_ms - world.now_ms % (HOUR_S * 1000)
    assert told(world)["run"] == f"{hour_ms // 60_000:08d}"


def test_neither_a_new_schedule_nor_the_end_of_a_suspension_begins_a_run():
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


def test_while_suspended_runs_on_demand_work():
    world = analysed(analytics={"schedule": "* * * * *", "suspend": True})
    world.idle(130)
    assert made(world) == []
    analyse(world)
    assert told(world)["state"] == "Succeeded"


def test_a_time_that_comes_while_a_run_goes_on_is_left_out_and_said():
    world = analysed(analytics={"schedule": "* * * * *"})
    world.spark.last = "RUNNING"
    world.run(lambda: told(world).get("state") == "Running")
    world.idle(150)
    assert len(made(world)) == 1
    assert len(events(world, "AnalyticsSkipped")) >= 2
    world.spark.last = "COMPLETED"
    world.run(lambda: len(made(world)) == 2)


def test_a_clock_that_is_set_back_repeats_no_run():
    world = analysed(analytics={"schedule": "*/10 * * * *"})
    world.run(lambda: ended(world), ticks=1000)
    world.now_ms -= 1500 * 1000
    world.idle(1400)
    assert len(made(world)) == 1


@pytest.mark.parametrize(
    ("analytics", "said"),
    [({"schedule": "0 3 31 2 *"}, "schedule"), ({"schedule": "0 3 * * *", "timeZone": "Europe/Berlyn"}, "timeZone")],
)
def test_a_schedule_that_cannot_be_meant_is_said_and_runs_on_demand_go_on(analytics, said):
    world = analysed(analytics=analytics)
    assert ready(world)["reason"] == "InvalidSchedule"
    assert said in ready(world)["message"]
    assert world.settled
    analyse(world)
    assert told(world)["state"] == "Succeeded"
    assert ready(world)["reason"] == "InvalidSchedule"


def test_without_the_spark_operator_it_says_what_to_install_and_the_rest_works():
    world = FakeWorld()
    world.kube.unknown.add("SparkApplication")
    world.create(analytics={"schedule": "* * * * *"})
    world.run()
    world.idle(3)
    assert ready(world)["reason"] == "SparkOperatorMissing"
    assert "spark.jobNamespaces" in ready(world)["message"]
    assert "spark-operator/spark-operator" in ready(world)["message"]
    assert len(events(world, "SparkOperatorMissing")) == 1
    world.run(lambda: told(world).get("state") == "Starting", ticks=100)
    world.kube.requests.clear()
    world.idle(300)
    attempts = [request for request in analytics_requests(world) if request[0] == "create"]
    assert 4 <= len(attempts) <= 6
    assert world.settled
    assert world.reason("Degraded") == "AsExpected"
    assert world.failures == []


def test_a_run_that_waited_for_the_spark_operator_begins_when_it_comes():
    world = analysed()
    world.kube.unknown.add("SparkApplication")
    world.annotate(analyze="1")
    world.idle(20)
    assert ready(world)["reason"] == "SparkOperatorMissing"
    world.kube.unknown.clear()
    world.run(lambda: ended(world), ticks=200)
    world.idle(2)
    assert ready(world)["reason"] == "RunSucceeded"


def test_a_run_that_waits_for_the_spark_operator_too_long_fails_for_all_groups_at_once():
    world = analysed(size=3, analytics={"deadlineSeconds": 120})
    world.kube.unknown.add("SparkApplication")
    world.annotate(analyze="1")
    world.run(lambda: ended(world), ticks=200)
    assert told(world)["state"] == "Failed"
    assert ready(world)["reason"] == "SparkOperatorMissing"
    assert "DeadlineExceeded" in group(world)["message"]
    assert group(world, 1) == {}


@pytest.mark.parametrize("state", ["FAILED", "SUBMISSION_FAILED"])
def test_a_failed_application_is_told_with_the_spark_operator_s_words(state):
    world = analysed()
    world.spark.last, world.spark.error, world.spark.result = state, "no such\n image", None
    analyse(world)
    assert told(world)["state"] == "Failed"
    assert (ready(world)["status"], ready(world)["reason"]) == ("False", "RunFailed")
    assert "no such image" in group(world)["message"]
    assert "kubectl logs" in group(world)["message"]
    assert len(events(world, "RunFailed")) == 1
    assert world.analysed == ["failed"]
    assert world.settled
    assert world.reason("Degraded") == "AsExpected"


def test_a_failed_driver_s_own_sentence_is_told():
    world = analysed()
    world.spark.last, world.spark.error = "FAILED", "driver container failed with ExitCode: 3"
    world.spark.result = {"formatVersion": 1, "error": "http://demo-broker-0 refused the token: see Secret"}
    analyse(world)
    assert group(world)["message"] == "RunFailed: http://demo-broker-0 refused the token: see Secret"


def test_figures_of_the_last_success_stay_when_a_run_fails():
    world = analysed()
    analyse(world, "1")
    first = group(world)
    world.spark.last = "FAILED"
    world.spark.result = {"formatVersion": 1, "error": "it broke"}
    analyse(world, "2")
    assert group(world)["state"] == "Failed"
    for figure in ("messages", "reclaimableBytes", "worstLatenessMs", "report"):
        assert group(world)[figure] == first[figure]
    assert told(world)["messages"] == 100
    assert first["report"] in applications(world)
    world.spark.last, world.spark.result = "COMPLETED", dict(RESULT, messages=1)
    analyse(world, "3")
    assert told(world)["messages"] == 1
    assert ready(world)["reason"] == "RunSucceeded"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "has no status.json"),
        ("{", "cannot be read"),
        ('{"formatVersion": 1, "messages": "many"}', "cannot be read"),
        ('{"formatVersion": 1, "messages": 1e30}', "cannot be read"),
        ('{"formatVersion": 1, "messages": -1}', "cannot be read"),
        ("[]", "cannot be read"),
        ('{"formatVersion": 2, "messages": {"new": "meaning"}}', "format version 2"),
        ('{"formatVersion": 1, "error": "disk\\nfull"}', "disk full"),
        ("x" * 70_000, "too long"),
    ],
)
def test_a_result_that_cannot_be_used_fails_the_run_with_a_sentence(result, said):
    world = analysed()
    world.spark.result = result
    analyse(world)
    assert told(world)["state"] == "Failed"
    assert said in group(world)["message"]
    assert "\n" not in group(world)["message"]


def test_a_result_that_was_deleted_fails_the_run():
    world = analysed()
    world.spark.last = "RUNNING"
    world.annotate(analyze="1")
    world.run(lambda: told(world).get("state") == "Running")
    world.kube.remove("AnalyticsResult", "default", applications(world)[0])
    world.spark.last = "COMPLETED"
    world.run(lambda: ended(world))
    assert "is not there any more" in group(world)["message"]


def test_what_was_skipped_and_a_report_that_is_left_out_are_told():
    world = analysed()
    world.spark.result = dict(RESULT, complete=False, skippedCount=3, reportOmitted="the report has 2 MB")
    world.spark.report = False
    analyse(world)
    assert told(world)["state"] == "Succeeded"
    assert told(world)["complete"] is False
    assert "report" not in group(world)
    assert group(world)["message"] == "the report has 2 MB"
    assert "3 parts of demo-0 could not be read" in ready(world)["message"]


def test_unknown_members_of_a_result_are_left_alone():
    world = analysed()
    world.spark.result = dict(RESULT, new={"a": 1})
    analyse(world)
    assert told(world)["state"] == "Succeeded"


def test_an_application_that_nobody_looks_at_is_said_and_ended_by_the_deadline():
    world = analysed(analytics={"deadlineSeconds": 100})
    world.spark.is_silent = True
    world.annotate(analyze="1")
    world.run(lambda: ready(world).get("reason") == "SparkOperatorSilent", ticks=80)
    assert "spark.jobNamespaces" in ready(world)["message"]
    world.run(lambda: ended(world), ticks=60)
    world.idle(3)
    assert ready(world)["reason"] == "DeadlineExceeded"
    assert applications(world) == []


def test_a_driver_that_finds_no_node_is_said():
    world = analysed()
    world.spark.driver_waits = "0/3 nodes are available: 3 Insufficient memory"
    world.annotate(analyze="1")
    world.run(lambda: "Insufficient memory" in group(world).get("message", ""))
    assert group(world)["state"] == "Submitted"
    assert "Insufficient memory" in ready(world)["message"]
    assert world.reason("Degraded") == "AsExpected"


@pytest.mark.parametrize("state", ["UNKNOWN", "SUSPENDED", "INVALIDATING", "PENDING_RERUN", "SOMETHING_NEW"])
def test_states_in_which_an_application_stays_end_by_the_deadline(state):
    world = analysed(analytics={"deadlineSeconds": 60})
    world.spark.last = state
    world.annotate(analyze="1")
    world.run(lambda: ended(world), ticks=100)
    world.idle(3)
    assert ready(world)["reason"] == "DeadlineExceeded"
    assert group(world)["message"].startswith("DeadlineExceeded: it took longer than the 60 s")
    assert applications(world) == []
    assert not [name for name in world.names("Pod") if name.endswith("-driver")]


def test_an_application_that_is_deleted_by_hand_fails_and_its_driver_goes():
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


def test_a_broker_that_is_not_ready_is_waited_for():
    world = analysed()
    world.kube.unready.add("demo-broker-0-0")
    world.idle(5)
    world.annotate(analyze="1")
    world.idle(20)
    assert made(world) == []
    assert "demo-0 is not ready" in ready(world)["message"]
    world.kube.unready.clear()
    world.run(lambda: ended(world))
    assert told(world)["state"] == "Succeeded"


def test_a_broker_that_stays_not_ready_ends_the_run_by_the_deadline():
    world = analysed(analytics={"deadlineSeconds": 60})
    world.kube.unready.add("demo-broker-0-0")
    world.idle(5)
    world.annotate(analyze="1")
    world.run(lambda: ended(world), ticks=100)
    assert "DeadlineExceeded" in group(world)["message"]
    assert "demo-0 is not ready" in group(world)["message"]
    assert made(world) == []


def test_while_paused_nothing_is_begun_and_what_runs_is_followed():
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


def test_a_deadline_that_passes_while_paused_is_kept_afterwards_and_makes_nothing_spin():
    world = analysed(analytics={"deadlineSeconds": 60})
    world.spark.last = "RUNNING"
    world.annotate(analyze="1")
    world.run(lambda: told(world).get("state") == "Running")
    world.change(paused=True)
    world.idle(100)
    assert told(world)["state"] == "Running"
    assert world.reconcile().requeue_after_s >= world.settings.progress_interval_s
    world.change(paused=False)
    world.run(lambda: ended(world))
    assert "DeadlineExceeded" in group(world)["message"]


def test_a_group_that_goes_during_a_run_is_dropped_from_it():
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


def test_a_group_that_goes_without_a_run_takes_its_figures_along():
    world = analysed(size=2)
    analyse(world)
    assert told(world)["messages"] == 200
    world.change(size=1)
    world.run()
    assert told(world)["messages"] == 100


def test_without_the_field_all_of_it_goes_also_amid_a_run():
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


def test_a_spec_that_cannot_be_read_takes_nothing_away():
    world = analysed()
    analyse(world)
    before = told(world)
    world.change(size="many")
    world.idle(10)
    assert told(world) == before
    assert ready(world)["reason"] == "RunSucceeded"
    assert len(applications(world)) == 1


def test_the_history_keeps_as_many_runs_as_it_shall():
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


def test_a_report_that_is_told_is_kept_though_its_run_failed_for_another_group():
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


def test_applications_of_others_are_left_alone():
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


def test_a_name_that_somebody_else_has_fails_the_run_with_a_sentence():
    world = analysed()
    account = {"kind": "ServiceAccount", "metadata": {"name": "demo-analytics", "namespace": "default"}}
    world.kube.put(account)
    analyse(world)
    assert "ServiceAccount demo-analytics is there already" in group(world)["message"]
    assert made(world) == []


@pytest.mark.parametrize(("verb", "kind"), [("create", "SparkApplication"), ("list", "SparkApplication")])
def test_a_missing_permission_is_said_and_the_rest_works(verb, kind):
    world = FakeWorld()
    world.spark = FakeSpark(world.kube)
    world.others.append(world.spark.tick)
    world.kube.forbidden.add((verb, kind))
    world.create(analytics={})
    world.annotate(analyze="1")
    world.run()
    world.idle(30)
    assert (ready(world)["status"], ready(world)["reason"]) == ("False", "RunFailed")
    assert f"cannot {verb} resource {kind}" in ready(world)["message"]
    assert world.settled
    assert world.failures == []
    assert world.reason("Degraded") == "AsExpected"
    world.kube.forbidden.clear()
    world.run(lambda: ready(world).get("reason") == "RunSucceeded", ticks=200)


def test_what_is_not_allowed_for_too_long_ends_the_run_by_the_deadline():
    world = analysed(analytics={"deadlineSeconds": 60})
    world.kube.forbidden |= {(verb, "SparkApplication") for verb in ("get", "list", "create")}
    world.annotate(analyze="1")
    world.run(lambda: ended(world), ticks=200)
    assert "DeadlineExceeded" in group(world)["message"]


def test_a_result_of_an_operator_that_was_away_for_longer_than_the_deadline_is_not_lost():
    world = analysed(analytics={"deadlineSeconds": 60})
    world.annotate(analyze="1")
    world.run(lambda: len(made(world)) == 1)
    for _ in range(300):
        world.tick()
    world.restart_operator()
    world.run(lambda: ended(world))
    assert told(world)["state"] == "Succeeded"


@pytest.mark.parametrize("status", [0, 409, 429, 500, 503])
def test_an_api_server_that_fails_now_and_then_only_delays_a_run(status):
    world = analysed(size=2)
    create, chance = world.kube.create, random.Random(1)

    async def failing(manifest):
        if chance.random() < 0.6:
            raise KubeError(status, "Trouble", "not now")
        return await create(manifest)

    world.kube.create = failing
    world.annotate(analyze="1")
    world.run(lambda: ended(world), ticks=400)
    assert told(world)["state"] == "Succeeded"
    assert len(made(world)) == 2
    assert world.failures == []


def test_an_application_that_the_api_server_refuses_fails_with_its_words():
    world = analysed()
    create = world.kube.create

    async def refusing(manifest):
        if manifest["kind"] == "SparkApplication":
            raise KubeError(422, "Invalid", "spec.driver.cores: must be at most 1")
        return await create(manifest)

    world.kube.create = refusing
    analyse(world)
    assert "spec.driver.cores: must be at most 1" in group(world)["message"]
    assert ready(world)["reason"] == "RunFailed"


def test_a_bug_in_it_does_not_keep_the_pass_from_its_work(monkeypatch):
    from delaymq_operator.reconcile.broker.analytics import step

    async def broken(p, spec):
        raise TypeError("a bug")

    monkeypatch.setattr(step, "go_on", broken)
    world = analysed()
    world.change(size=2)
    world.run()
    assert world.status["readyGroups"] == 2
    assert world.failures == []


def test_a_volume_for_one_pod_is_read_through_http_and_that_is_said():
    world = analysed(analytics={"read": "Volume"})
    claim = copy.deepcopy(world.get("PersistentVolumeClaim", "store-demo-broker-0-0"))
    claim["spec"]["accessModes"] = ["ReadWriteOncePod"]
    world.kube.put(claim)
    analyse(world)
    [application] = [world.get("SparkApplication", name) for name in applications(world)]
    assert "http://demo-broker-0.default.svc:8080" in application["spec"]["arguments"]
    assert "ReadWriteOncePod" in ready(world)["message"]


def test_an_application_is_not_told_to_be_otherwise_while_it_runs():
    world = analysed()
    world.spark.last = "RUNNING"
    world.annotate(analyze="1")
    world.run(lambda: told(world).get("state") == "Running")
    generation = world.get("SparkApplication", applications(world)[0])["metadata"]["generation"]
    world.change(analytics={"driver": {"memory": "3g"}})
    world.idle(20)
    assert world.get("SparkApplication", applications(world)[0])["metadata"]["generation"] == generation
    assert state_of(world.get("SparkApplication", applications(world)[0])) == "RUNNING"


def test_all_goes_with_the_broker():
    world = analysed()
    analyse(world)
    world.kube.remove("Broker", "default", "demo")
    for _ in range(5):
        world.tick()
    assert applications(world) == world.names("AnalyticsResult") == []
    assert not [name for name in world.names("Pod") if name.endswith("-driver")]
