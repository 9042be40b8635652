"""The NetworkPolicy of drivers and executors: created before the first pod, deleted after the last."""

from typing import Any

import pytest
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.network_policies import selects
from delaymq_operator_testing.worlds.analysed import analyse, analysed, applications, ended, group, made, told

POLICY = "demo-analytics"
OF_BROKER = ["demo-broker", "demo-namesrv"]
ALL = [POLICY, *OF_BROKER]
ON = {"enabled": True}
GUARDED = "a driver was checked"


def drivers(world: FakeWorld) -> list[Manifest]:
    return list(world.kube.select("Pod", NAMESPACE, {"app.kubernetes.io/component": "analytics"}))


def closed(**spec: Any) -> FakeWorld:
    """Return a cluster with policies that asserts in each tick that every driver is covered by one."""
    world = analysed(networkPolicy=ON, **spec)

    def guard() -> None:
        for driver in drivers(world):
            policy = world.get("NetworkPolicy", POLICY)
            assert policy is not None
            assert selects(policy["spec"]["podSelector"], driver["metadata"]["labels"])
            world.calls.append(GUARDED)

    world.watch = guard
    return world


def test_drivers_always_have_policy_and_it_is_kept_between_runs() -> None:
    world = closed(size=2)
    assert world.names("NetworkPolicy") == ALL
    analyse(world)
    assert told(world)["state"] == "Succeeded"
    assert GUARDED in world.calls
    assert world.names("NetworkPolicy") == ALL


def test_run_succeeds_without_policies() -> None:
    world = analysed()
    analyse(world)
    assert told(world)["state"] == "Succeeded"
    assert world.names("NetworkPolicy") == []


def test_policies_can_be_switched_during_run() -> None:
    world = analysed()
    world.spark.last = "RUNNING"
    world.annotate(analyze="1")
    world.run(lambda: told(world).get("state") == "Running")
    world.change(networkPolicy=ON)
    world.run(lambda: world.names("NetworkPolicy") == ALL)
    world.change(networkPolicy={"enabled": False})
    world.run(lambda: world.names("NetworkPolicy") == [])
    assert told(world)["state"] == "Running"


@pytest.mark.parametrize("amid_a_run", [False, True])
def test_policy_is_deleted_after_drivers_when_analytics_are_removed(amid_a_run: bool) -> None:
    world = closed()
    if amid_a_run:
        world.spark.last = "RUNNING"
        world.annotate(analyze="1")
        world.run(lambda: told(world).get("state") == "Running")
    else:
        analyse(world)
    assert drivers(world)
    world.change(analytics=None)
    world.run(lambda: world.names("NetworkPolicy") == OF_BROKER)
    assert drivers(world) == []
    world.run()


def test_policy_is_kept_while_driver_terminates() -> None:
    world = closed()
    world.spark.last = "RUNNING"
    world.annotate(analyze="1")
    world.run(lambda: told(world).get("state") == "Running")
    delete = world.kube.delete

    async def slow(kind: str, *arguments: Any, **options: Any) -> None:
        if kind not in ("Pod", "SparkApplication"):
            await delete(kind, *arguments, **options)

    world.kube.delete = slow
    world.change(analytics=None)
    world.run(lambda: "analytics" not in world.status)
    world.idle(60)
    assert world.names("NetworkPolicy") == ALL
    world.kube.delete = delete
    world.kube.remove("Pod", NAMESPACE, drivers(world)[0]["metadata"]["name"])
    world.run(lambda: world.names("NetworkPolicy") == OF_BROKER)


def test_policies_are_deleted_with_broker() -> None:
    world = analysed(networkPolicy=ON)
    assert world.names("NetworkPolicy") == ALL
    world.kube.remove("Broker", NAMESPACE, "demo")
    for _ in range(5):
        world.tick()
    assert world.names("NetworkPolicy") == []


def test_deleted_or_modified_policy_is_restored() -> None:
    world = closed()
    wanted = world.existing("NetworkPolicy", POLICY)["spec"]
    world.kube.remove("NetworkPolicy", NAMESPACE, POLICY)
    world.run(lambda: world.names("NetworkPolicy") == ALL)
    body = dict(world.existing("NetworkPolicy", POLICY))
    world.kube.put(body | {"spec": wanted | {"ingress": [{}]}})
    world.run(lambda: world.existing("NetworkPolicy", POLICY)["spec"] == wanted)


def test_run_fails_if_policy_name_is_taken() -> None:
    world = analysed(networkPolicy={"enabled": False})
    theirs = {"kind": "NetworkPolicy", "metadata": {"name": POLICY, "namespace": NAMESPACE}, "spec": {}}
    world.kube.put(theirs)
    world.change(networkPolicy=ON)
    world.run()
    analyse(world)
    assert "NetworkPolicy demo-analytics already exists" in group(world)["message"]
    assert made(world) == applications(world) == []
    assert world.reason("Degraded") == "AsExpected"
    assert world.existing("NetworkPolicy", POLICY)["spec"] == {}
    world.kube.remove("NetworkPolicy", NAMESPACE, POLICY)
    analyse(world, "2")
    assert told(world)["state"] == "Succeeded"


def test_paused_broker_keeps_policies_unchanged() -> None:
    world = closed()
    world.change(paused=True)
    world.idle(3)
    world.kube.remove("NetworkPolicy", NAMESPACE, POLICY)
    world.idle(60)
    assert world.names("NetworkPolicy") == OF_BROKER
    world.change(paused=False)
    world.run(lambda: world.names("NetworkPolicy") == ALL)
    analyse(world)
    assert ended(world)
