"""Recovery of a Broker's analytics: API errors, late Spark operator, pauses, overflowing figures."""

import json
from typing import Any

from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.fakes.spark import RESULT
from delaymq_operator_testing.fakes.world import FakeWorld

MOST = (1 << 63) - 1


def analysed(size: int = 1, spark_operator: bool = True, **analytics: Any) -> FakeWorld:
    """Return a cluster with a settled Broker that has analytics."""
    world = FakeWorld()
    if not spark_operator:
        world.kube.unknown.add("SparkApplication")
    world.others.append(world.spark.tick)
    world.create(size=size, analytics=analytics)
    world.run()
    world.idle(3)
    return world


def told(world: FakeWorld) -> Manifest:
    return world.status.get("analytics") or {}


def ended(world: FakeWorld) -> bool:
    return told(world).get("state") in ("Succeeded", "Failed")


def analyse(world: FakeWorld, text: str) -> None:
    before = told(world).get("run")
    world.annotate(analyze=text)
    world.run(lambda: told(world).get("run") != before and ended(world), ticks=1000)


def test_history_is_trimmed_after_failed_deletion() -> None:
    world = analysed(successfulRunsHistoryLimit=1)
    analyse(world, "1")
    delete = world.kube.delete
    refused: list[str] = []

    async def fail_once(kind: str, *arguments: Any, **options: Any) -> None:
        if kind == "SparkApplication" and not refused:
            refused.append(kind)
            raise KubeError(503, "ServiceUnavailable", "busy")
        await delete(kind, *arguments, **options)

    world.kube.delete = fail_once
    analyse(world, "2")
    world.idle(30)
    assert refused
    assert world.names("SparkApplication") == [told(world)["application"]]


def test_missing_spark_operator_is_reported_until_it_is_installed() -> None:
    world = analysed(spark_operator=False, schedule="0 3 * * *")
    assert world.reason("AnalyticsReady") == "SparkOperatorMissing"
    world.kube.requests.clear()
    world.idle(300)
    asked = [request for request in world.kube.requests if request[1] == "SparkApplication"]
    assert 3 <= len(asked) <= 6
    world.kube.unknown.clear()
    world.idle(120)
    assert world.reason("AnalyticsReady") == "NoRunYet"
    world.kube.requests.clear()
    world.idle(300)
    assert [request for request in world.kube.requests if request[1] == "SparkApplication"] == []


def test_run_recorded_before_long_pause_starts_afterwards() -> None:
    world = analysed(deadlineSeconds=60)
    world.kube.unready.add("demo-broker-0-0")
    world.run(lambda: world.reason("Ready") != "AllGroupsReady")
    world.annotate(analyze="1")
    world.run(lambda: any(each["state"] == "Starting" for each in told(world).get("groups", [])))
    world.change(paused=True)
    world.idle(100)
    assert told(world)["state"] == "Starting"
    writes = len(world.kube.writes())
    world.idle(20)
    assert len(world.kube.writes()) == writes
    world.kube.unready.clear()
    world.change(paused=False)
    world.run(lambda: ended(world))
    assert told(world)["state"] == "Succeeded"


def test_waiting_run_ends_at_deadline_after_pause() -> None:
    world = analysed(deadlineSeconds=60)
    world.kube.unready.add("demo-broker-0-0")
    world.run(lambda: world.reason("Ready") != "AllGroupsReady")
    world.annotate(analyze="1")
    world.run(lambda: any(each["state"] == "Starting" for each in told(world).get("groups", [])))
    world.change(paused=True)
    world.idle(100)
    world.change(paused=False)
    world.idle(30)
    assert told(world)["state"] == "Starting"
    world.run(lambda: ended(world), ticks=100)
    assert "DeadlineExceeded" in told(world)["groups"][0]["message"]


def test_sums_are_clamped_to_largest_integer_of_api_server() -> None:
    world = analysed(size=2)
    world.spark.result = json.dumps(RESULT | {"messages": MOST})
    analyse(world, "1")
    assert [each["messages"] for each in told(world)["groups"]] == [MOST, MOST]
    assert told(world)["messages"] == MOST
    assert told(world)["totalBytes"] == 2 * RESULT["totalBytes"]
