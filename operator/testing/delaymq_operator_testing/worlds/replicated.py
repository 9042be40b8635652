"""Brokers with replicas, and invariants of each moment."""

from typing import Any

from delaymq_operator.reconcile.ports import Manifest

from delaymq_operator_testing.fakes.groups import FakeGroup
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.worlds.settled import is_ready

MEMBERS = ["demo-broker-0-0", "demo-broker-0-1", "demo-broker-0-2"]


def replicated(replicas: int = 2, **spec: Any) -> FakeWorld:
    """Return a settled Broker whose group has replicas."""
    found = FakeWorld()
    found.create(replicasPerGroup=replicas, **spec)
    found.run()
    found.kube.events.clear()
    found.brokers.calls.clear()
    watch_addresses(found)
    return found


def group_of(world: FakeWorld, name: str = "demo-0") -> FakeGroup:
    return world.brokers.groups.groups[name]


def reached(world: FakeWorld, service: str) -> set[str]:
    """Return the pods that clients of a Service may reach; an address that no pod has is returned itself."""
    labels = {"kubernetes.io/service-name": service}
    slices = world.kube.select("EndpointSlice", NAMESPACE, labels)
    addresses = {ip for each in slices for entry in each.get("endpoints") or [] for ip in entry["addresses"]}
    pods = {
        pod["status"]["podIP"]: pod["metadata"]["name"]
        for pod in world.kube.select("Pod", NAMESPACE, {})
        if (pod.get("status") or {}).get("podIP")
    }
    return {pods.get(address, address) for address in addresses}


def watch_addresses(world: FakeWorld, service: str = "demo-broker-0", group: str = "demo-0") -> None:
    """Assert from now on that a Service has an endpoint, and that it reaches at most one existing pod: the acting
    broker.
    """
    before = world.watch

    def watch() -> None:
        before()
        found = reached(world, service)
        assert found, "the Service has no endpoint"
        pods = {name for name in found if world.get("Pod", name) is not None}
        state = world.brokers.groups.groups.get(group)
        acting = {state.master} if state is not None and state.master else {MEMBERS[0]}
        assert pods <= acting, f"clients reach {pods}, and {acting} acts"

    world.watch = watch


def watch_service(world: FakeWorld, group: str = "demo-0") -> None:
    """Assert from now on that a master that runs and is in sync always remains."""
    before = world.watch

    def watch() -> None:
        before()
        state = world.brokers.groups.groups[group]
        ready = [name for name in MEMBERS if (pod := world.get("Pod", name)) is not None and is_ready(pod)]
        assert state.master in ready, f"the master {state.master} is not ready: {ready}"

    world.watch = watch


def claim_annotation(world: FakeWorld, pod: str) -> str | None:
    claim = world.get("PersistentVolumeClaim", f"store-{pod}")
    return ((claim or {}).get("metadata") or {}).get("annotations", {}).get("delaymq.io/members")


def environment(pod: Manifest) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}
