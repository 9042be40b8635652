"""A settled Broker, and the restarts that a change of it causes."""

from collections.abc import Callable
from typing import Any

from delaymq_operator.reconcile.ports import Manifest

from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld

BROKERS = ["demo-broker-0-0", "demo-broker-1-0"]
EVERYTHING = ["demo-namesrv-0", *BROKERS]
TRIAL = "demo-namesrv-trial-0"


def settled(**spec: Any) -> FakeWorld:
    found = FakeWorld()
    # Secrets that specs refer to: a missing one would block every change.
    data = dict.fromkeys(("plain_acl.yml", "accessKey", "secretKey", "tls.crt", "tls.key"), "c29tZXRoaW5n")
    for name in ("rules", "certificate"):
        found.kube.put({"kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data})
    found.create(**spec)
    found.run()
    found.brokers.calls.clear()
    found.kube.events.clear()
    return found


def restarts(world: FakeWorld, change: Callable[[], object]) -> list[str]:
    """Return the pods that the change restarts, in order, without the trial pod."""
    before = world.pod_uids()
    started = len(world.kube.started)
    watch_rolls(world)
    change()
    world.idle(1)
    world.run()
    again = [name for name in world.kube.started[started:] if name != TRIAL]
    assert len(again) == len(set(again)), "a pod was restarted twice"
    assert {name for name, uid in world.pod_uids().items() if before.get(name, uid) != uid} <= set(again)
    return again


def watch_rolls(world: FakeWorld) -> None:
    """Assert from now on that at most one broker is down, and that one of several stops only while it refuses sends."""

    def watch() -> None:
        size = world.broker["spec"].get("size", 1)
        pods = [world.get("Pod", f"demo-broker-{group}-0") for group in range(size)]
        ready = [pod for pod in pods if pod and is_ready(pod)]
        assert len(ready) >= size - 1, "two brokers are down"
        for pod in pods:
            if size > 1 and pod and "deletionTimestamp" in pod["metadata"]:
                broker = world.brokers.running.get(pod["metadata"]["name"])
                assert broker is None or broker.drain.mode == "refuse", "stopped while it takes sends"

    world.watch = watch


def is_ready(pod: Manifest) -> bool:
    conditions = (pod.get("status") or {}).get("conditions", [])
    return "deletionTimestamp" not in pod["metadata"] and any(each["status"] == "True" for each in conditions)
