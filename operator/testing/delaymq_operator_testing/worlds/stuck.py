"""Obstacles that prevent the pods of a FakeWorld from running, and the Events by which Kubernetes reports them."""

from __future__ import annotations

from collections.abc import Callable

from delaymq_operator.api.resource import timestamp_of_ms

from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld

QUOTA = 'create Pod demo-broker-0-0 in StatefulSet demo-broker-0 failed error: pods "demo-broker-0-0" is forbidden: '
QUOTA += "exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0"


def warn(world: FakeWorld, kind: str, name: str, reason: str, note: str, *, uid: str = "") -> None:
    """Record a Warning Event about an object at the current time; `uid` selects a former object with that name."""
    about = world.kube.objects[kind, NAMESPACE, name]
    event = {
        "kind": "Event",
        "metadata": {"name": f"{name}.{reason.lower()}{uid}", "namespace": NAMESPACE},
        "type": "Warning",
        "reason": reason,
        "note": note,
        "regarding": {"kind": kind, "name": name, "uid": uid or about["metadata"]["uid"]},
        "eventTime": None,
        "deprecatedLastTimestamp": timestamp_of_ms(world.now_ms),
    }
    world.kube.put(event)


def refuse_pod(world: FakeWorld, name: str, *, told: bool = True) -> Callable[[], None]:
    """Let the API server reject the creation of this pod until the returned function is called."""
    stateful_set = name.rpartition("-")[0]

    def refuse() -> None:
        if world.get("Pod", name) is not None:
            world.kube.remove("Pod", NAMESPACE, name)
            if told:
                warn(world, "StatefulSet", stateful_set, "FailedCreate", QUOTA)

    world.others.append(refuse)
    return lambda: world.others.remove(refuse)


def keep_creating(world: FakeWorld, name: str) -> Callable[[], None]:
    """Keep the containers of this pod in ContainerCreating until the returned function is called."""

    def keep() -> None:
        pod = world.get("Pod", name)
        if pod is not None and "deletionTimestamp" not in pod["metadata"]:
            waiting = {"reason": "ContainerCreating"}
            pod["status"] = {
                "phase": "Pending",
                "containerStatuses": [{"name": "broker", "state": {"waiting": waiting}}],
            }

    world.others.append(keep)
    return lambda: world.others.remove(keep)
