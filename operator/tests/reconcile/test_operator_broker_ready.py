"""Ready, Reconciling and Stalled for the newest generation, as `kubectl wait` and kstatus evaluate them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.gitops import kstatus, wait_returns
from delaymq_operator_testing.worlds.settled import BROKERS, EVERYTHING, settled


@pytest.fixture
def world() -> FakeWorld:
    """A settled Broker with two groups."""
    return settled(size=2)


def images(world: FakeWorld) -> set[str | None]:
    pods = [world.get("Pod", name) for name in EVERYTHING]
    return {pod["spec"]["containers"][0]["image"] if pod else None for pod in pods}


def watch(world: FakeWorld, check: Callable[[], None]) -> None:
    """Call `check` after each tick and after each patch."""
    world.watch = check
    patch = world.kube.patch

    async def patch_and_check(*arguments: Any, **options: Any) -> Manifest:
        done = await patch(*arguments, **options)
        check()
        return done

    world.kube.patch = patch_and_check


def test_kubectl_wait_and_kstatus_wait_for_last_replaced_pod(world: FakeWorld) -> None:
    def check() -> None:
        if wait_returns(world.broker, "Ready"):
            assert images(world) == {"delaymq/broker:2"}, "kubectl wait returned while an old pod ran"
        if kstatus(world.broker) == "Current":
            assert images(world) == {"delaymq/broker:2"}, "kstatus said Current while an old pod ran"
        assert kstatus(world.broker) != "Failed"

    world.change(image="delaymq/broker:2")
    watch(world, check)
    world.idle(2)
    assert world.condition("Reconciling")["status"] == "True"
    assert world.condition("Ready")["observedGeneration"] == world.broker["metadata"]["generation"]
    world.run()
    assert wait_returns(world.broker, "Ready")
    assert kstatus(world.broker) == "Current"
    assert (world.condition("Reconciling"), world.condition("Stalled")) == ({}, {})


def test_rollout_message_lists_pods_without_new_spec(world: FakeWorld) -> None:
    world.change(flush="Sync")
    world.run(lambda: world.reason("Progressing") == "MovingWrites")
    assert (world.condition("Ready")["status"], world.reason("Ready")) == ("Unknown", "Rolling")
    assert world.condition("Ready")["message"] == (
        "2 of 2 broker groups are ready, but the spec is not in effect in 2 pods: demo-broker-0-0, demo-broker-1-0. "
        "See the condition Progressing."
    )


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"fileReservedTime": "9"}},
        {"networkPolicy": {"enabled": True}},
        {"storage": {"size": "20Gi"}},
        {"storage": {"deleteClaim": True}},
        {"external": {"type": "NodePort", "advertisedAddress": "192.0.2.1", "annotations": {"a": "b"}}},
    ],
    ids=lambda change: "+".join(f"{key}.{next(iter(value))}" for key, value in change.items()),
)
def test_change_without_restart_keeps_ready_true(change: Manifest) -> None:
    before = {"external": {"type": "NodePort", "advertisedAddress": "192.0.2.1"}} if "external" in change else {}
    world = settled(size=2, **before)

    def check() -> None:
        assert world.condition("Ready")["status"] == "True"

    world.change(**change)
    watch(world, check)
    world.idle(1)
    world.run()
    assert wait_returns(world.broker, "Ready")
    assert kstatus(world.broker) == "Current"


def test_ready_waits_for_undelivered_setting_but_not_for_missed_response(world: FakeWorld) -> None:
    world.brokers.mute.add("demo-broker-1-0")
    world.run(lambda: world.reason("Degraded") == "BrokerUnreachable")
    assert wait_returns(world.broker, "Ready")
    world.change(config={"fileReservedTime": "9"})
    world.idle(30)
    assert world.reason("Ready") == "BrokerUnreachable"
    assert "demo-1" in world.condition("Ready")["message"]
    assert kstatus(world.broker) == "InProgress"
    world.brokers.mute.clear()
    world.run()
    assert world.brokers.running["demo-broker-1-0"].settings["fileReservedTime"] == "9"


def test_rejection_by_api_server_is_reported_as_not_ready_and_stalled(world: FakeWorld) -> None:
    admit = world.kube._admit

    def refuse(kind: str, body: Manifest, live: Manifest | None) -> None:
        if kind == "StatefulSet" and body["spec"]["template"]["spec"]["containers"][0]["image"] == "forbidden:1":
            raise KubeError(403, "Forbidden", "images come from registry.example")
        admit(kind, body, live)

    world.kube._admit = refuse
    before = world.pod_uids()
    world.change(image="forbidden:1")
    world.idle(20)
    assert (world.condition("Ready")["status"], world.reason("Ready")) == ("False", "ApplyFailed")
    assert world.condition("Ready")["message"].endswith(
        "The running pods are unchanged: 2 of 2 broker groups are ready."
    )
    assert world.reason("Stalled") == "ApplyFailed"
    assert kstatus(world.broker) == "Failed"
    assert world.pod_uids() == before
    world.change(image=None)
    world.idle(1)
    world.run()
    assert world.condition("Stalled") == {}


def test_pending_address_is_not_ready(world: FakeWorld) -> None:
    world.settings = replace(world.settings, progress_deadline_s=60)
    world.change(external={"type": "LoadBalancer"})
    world.idle(5)
    assert (world.condition("Ready")["status"], world.reason("Ready")) == ("False", "AddressPending")
    assert kstatus(world.broker) == "InProgress"
    world.idle(70)
    assert world.reason("Stalled") == "AddressPending"


def test_invalid_spec_stalls_immediately_at_its_generation(world: FakeWorld) -> None:
    world.change(config={"fileReservedTyme": "9"})
    world.idle(2)
    assert world.reason("Stalled") == "InvalidConfig"
    assert world.condition("Stalled")["observedGeneration"] == world.broker["metadata"]["generation"]
    assert world.condition("Reconciling") == {}
    assert kstatus(world.broker) == "Failed"
    world.change(config={})
    world.idle(1)
    world.run()
    assert kstatus(world.broker) == "Current"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"tls": {"secretName": "later"}}, "SecretMissing"),
        ({"delayLevelConfigRef": {"name": "later"}}, "DelayLevelConfigMissing"),
    ],
)
@pytest.mark.parametrize("made", [True, False], ids=["of a running Broker", "of a new Broker"])
def test_missing_reference_is_awaited_until_deadline(spec: Manifest, reason: str, made: bool) -> None:
    world = settled(size=1)
    world.settings = replace(world.settings, progress_deadline_s=60)
    if not made:
        world.kube.remove("Broker", NAMESPACE, "demo")
        world.idle(8)
        world.create(**spec)
    else:
        world.change(**spec)
    world.idle(5)
    assert world.reason("Degraded") == reason
    assert (world.condition("Reconciling")["status"], world.condition("Stalled")) == ("True", {})
    world.idle(70)
    assert world.reason("Stalled") == reason
    assert kstatus(world.broker) == "Failed"
    assert world.condition("Reconciling") == {}


def test_ready_is_unknown_while_paused(world: FakeWorld) -> None:
    world.change(paused=True, image="delaymq/broker:2")
    world.idle(20)
    assert (world.condition("Ready")["status"], world.reason("Ready")) == ("Unknown", "PausedBySpec")
    assert (world.condition("Reconciling"), world.condition("Stalled")) == ({}, {})
    assert not wait_returns(world.broker, "Ready")
    world.change(paused=False)
    world.idle(1)
    world.run()
    assert images(world) == {"delaymq/broker:2"}


def test_groups_to_be_removed_do_not_affect_ready(world: FakeWorld) -> None:
    world.brokers.stores["store-demo-broker-1-0"].pending = 5
    world.change(size=1)
    world.run(lambda: world.condition("ScaleInBlocked") != {})
    assert wait_returns(world.broker, "Ready")
    assert kstatus(world.broker) == "InProgress"
    assert BROKERS[1] in world.names("Pod")
