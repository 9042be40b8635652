"""Obstacles to a Broker's analytics: reported, bounded by the deadline, without effect on the rest."""

import random

import pytest
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest
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


def test_missing_spark_operator_is_reported_and_broker_is_unaffected() -> None:
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


def test_waiting_run_starts_when_spark_operator_is_installed() -> None:
    world = analysed()
    world.kube.unknown.add("SparkApplication")
    world.annotate(analyze="1")
    world.idle(20)
    assert ready(world)["reason"] == "SparkOperatorMissing"
    world.kube.unknown.clear()
    world.run(lambda: ended(world), ticks=200)
    world.idle(2)
    assert ready(world)["reason"] == "RunSucceeded"


def test_run_without_spark_operator_fails_at_deadline_for_all_groups() -> None:
    world = analysed(size=3, analytics={"deadlineSeconds": 120})
    world.kube.unknown.add("SparkApplication")
    world.annotate(analyze="1")
    world.run(lambda: ended(world), ticks=200)
    assert told(world)["state"] == "Failed"
    assert ready(world)["reason"] == "SparkOperatorMissing"
    assert "DeadlineExceeded" in group(world)["message"]
    assert group(world, 1) == {}


def test_ignored_application_is_reported_and_ends_at_deadline() -> None:
    world = analysed(analytics={"deadlineSeconds": 100})
    world.spark.is_silent = True
    world.annotate(analyze="1")
    world.run(lambda: ready(world).get("reason") == "SparkOperatorSilent", ticks=80)
    assert "spark.jobNamespaces" in ready(world)["message"]
    world.run(lambda: ended(world), ticks=60)
    world.idle(3)
    assert ready(world)["reason"] == "DeadlineExceeded"
    assert applications(world) == []


def test_unschedulable_driver_is_reported() -> None:
    world = analysed()
    world.spark.driver_waits = "0/3 nodes are available: 3 Insufficient memory"
    world.annotate(analyze="1")
    world.run(lambda: "Insufficient memory" in group(world).get("message", ""))
    assert group(world)["state"] == "Submitted"
    assert "Insufficient memory" in ready(world)["message"]
    assert world.reason("Degraded") == "AsExpected"


@pytest.mark.parametrize("state", ["UNKNOWN", "SUSPENDED", "INVALIDATING", "PENDING_RERUN", "SOMETHING_NEW"])
def test_application_stuck_in_state_ends_at_deadline(state: str) -> None:
    world = analysed(analytics={"deadlineSeconds": 60})
    world.spark.last = state
    world.annotate(analyze="1")
    world.run(lambda: ended(world), ticks=100)
    world.idle(3)
    assert ready(world)["reason"] == "DeadlineExceeded"
    late = "DeadlineExceeded: it took longer than spec.analytics.deadlineSeconds (60 s)"
    assert group(world)["message"].startswith(late)
    assert applications(world) == []
    assert not [name for name in world.names("Pod") if name.endswith("-driver")]


def test_run_waits_for_unready_broker() -> None:
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


def test_run_on_broker_that_stays_unready_ends_at_deadline() -> None:
    world = analysed(analytics={"deadlineSeconds": 60})
    world.kube.unready.add("demo-broker-0-0")
    world.idle(5)
    world.annotate(analyze="1")
    world.run(lambda: ended(world), ticks=100)
    assert "DeadlineExceeded" in group(world)["message"]
    assert "demo-0 is not ready" in group(world)["message"]
    assert made(world) == []


def test_name_conflict_fails_run_with_message() -> None:
    world = analysed()
    account = {"kind": "ServiceAccount", "metadata": {"name": "demo-analytics", "namespace": "default"}}
    world.kube.put(account)
    analyse(world)
    assert "ServiceAccount demo-analytics already exists" in group(world)["message"]
    assert made(world) == []


@pytest.mark.parametrize(("verb", "kind"), [("create", "SparkApplication"), ("list", "SparkApplication")])
def test_missing_permission_is_reported_and_broker_is_unaffected(verb: str, kind: str) -> None:
    world = FakeWorld()
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


def test_run_without_permission_ends_at_deadline() -> None:
    world = analysed(analytics={"deadlineSeconds": 60})
    world.kube.forbidden |= {(verb, "SparkApplication") for verb in ("get", "list", "create")}
    world.annotate(analyze="1")
    world.run(lambda: ended(world), ticks=200)
    assert "DeadlineExceeded" in group(world)["message"]


@pytest.mark.parametrize("status", [0, 409, 429, 500, 503])
def test_intermittent_api_errors_only_delay_run(status: int) -> None:
    world = analysed(size=2)
    create, chance = world.kube.create, random.Random(1)

    async def failing(manifest: Manifest) -> Manifest:
        if chance.random() < 0.6:
            raise KubeError(status, "Trouble", "not now")
        return await create(manifest)

    world.kube.create = failing
    world.annotate(analyze="1")
    world.run(lambda: ended(world), ticks=400)
    assert told(world)["state"] == "Succeeded"
    assert len(made(world)) == 2
    assert world.failures == []


def test_rejected_application_fails_with_message_of_api_server() -> None:
    world = analysed()
    create = world.kube.create

    async def refusing(manifest: Manifest) -> Manifest:
        if manifest["kind"] == "SparkApplication":
            raise KubeError(422, "Invalid", "spec.driver.cores: must be at most 1")
        return await create(manifest)

    world.kube.create = refusing
    analyse(world)
    assert "spec.driver.cores: must be at most 1" in group(world)["message"]
    assert ready(world)["reason"] == "RunFailed"


def test_bug_in_analytics_does_not_block_reconciliation(monkeypatch: pytest.MonkeyPatch) -> None:
    from delaymq_operator.reconcile.broker.analytics import step

    async def broken(p: object, spec: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(step, "continue_run", broken)
    world = analysed()
    world.change(size=2)
    world.run()
    assert world.status["readyGroups"] == 2
    assert world.failures == []
