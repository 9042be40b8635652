"""What tests of groups with replicas share: their load, and the group 0 of the Broker `demo`."""

from kind import objects
from kind.space import Manifest, Space, condition
from kind.waiting import NotYetError, wait_until

RATE = 50
"""Messages per second."""
LEVELS = f"{objects.LEVEL_OF['1s']},{objects.LEVEL_OF['5s']}"
PODS = ("demo-broker-0-0", "demo-broker-0-1")
REGISTER = "demo-broker-0-register"
"""Lease that states the master."""


def group_of(space: Space) -> Manifest:
    """Return the group's part of the Broker's status."""
    found: Manifest = space.broker()["status"]["groups"][0]
    return found


def wait_in_sync(space: Space, *, timeout_s: float = 90.0) -> Manifest:
    space.wait_broker_ready(timeout_s=timeout_s)
    assert condition(space.broker(), "ReplicasInSync")["status"] == "True"
    return group_of(space)


def lose_master(space: Space) -> Manifest:
    """Kill the master and delete its pod; return the group once the status names another one."""
    lost = group_of(space)["master"]
    # Its container would be back within a second, before another member takes over.
    space.kill_broker_process(lost)
    space.kubectl("delete", "pod", lost, "--grace-period=0", "--force")

    def ask() -> Manifest:
        group = group_of(space)
        if group.get("master") and group["master"] != lost:
            return group
        raise NotYetError(str({key: group.get(key) for key in ("master", "epoch", "replicas", "ready")}))

    return wait_until("the group has another master", ask, timeout_s=60)
