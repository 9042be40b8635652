"""Losses around a group with replicas: the API server, the operator and a volume, while messages are sent."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from kind import objects
from kind.clients import Program
from kind.groups import LEVELS, RATE, REGISTER, group_of
from kind.lab import Lab, Operator
from kind.space import Space, condition
from kind.verdict import longest_gap_s
from kind.waiting import NotYetError, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

API_SERVER_PORT = "6443"
OUTAGE_S = 120.0


class Load:
    """A producer, and the longest times without an acknowledged send."""

    def __init__(self, space: Space, name_servers: str) -> None:
        self.space = space
        self.producer: Program = space.client.produce(
            topic="orders", name_servers=name_servers, rate=RATE, levels=LEVELS, at_most_s=1_000
        )
        self.gaps: dict[str, float] = {}

    def go_on(self, count: int = 2 * RATE) -> None:
        self.producer.wait_lines("sent", len(self.producer.lines("sent")) + count, timeout_s=90)

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Measure the longest gap of a fault."""
        self.go_on()
        before = len(self.producer.sends())
        yield
        self.go_on()
        self.gaps[what] = round(longest_gap_s(self.producer.sends()[max(0, before - 1) :]), 2)


def _master_now(space: Space) -> str:
    """Return the master as the register states it: the operator may not run."""
    lease = space.get("lease", REGISTER)
    return str(lease["spec"].get("holderIdentity", ""))


def _wait_other_master(space: Space, former: str, *, timeout_s: float = 90.0) -> str:
    def ask() -> str:
        now = _master_now(space)
        if now and now != former:
            return now
        raise NotYetError(f"the master is {now}")

    return wait_until("another member is the master", ask, timeout_s=timeout_s)


def _wait_in_sync(space: Space, *, timeout_s: float = 180.0) -> None:
    def ask() -> bool:
        state = condition(space.broker(), "ReplicasInSync")
        if state.get("status") == "True":
            return True
        raise NotYetError(str(state))

    wait_until("all replicas are in sync", ask, timeout_s=timeout_s)


@contextmanager
def _without_api_server(lab: Lab) -> Iterator[None]:
    """Drop what pods on the workers send to the API server; kubelets still reach it."""
    rule = ("FORWARD", "-p", "tcp", "--dport", API_SERVER_PORT, "-j", "DROP")
    for node in lab.workers:
        lab.cluster.node_exec(node, "iptables", "-I", *rule)
    try:
        yield
    finally:
        for node in lab.workers:
            lab.cluster.node_exec(node, "iptables", "-D", *rule)


def test_group_serves_clients_through_losses_of_all_around_it(
    lab: Lab,
    operator: Operator,
    spaces: Callable[..., Space],
    note: Callable[..., None],
) -> None:
    space = spaces("losses")
    space.apply(objects.topic("orders", queues=4))
    name_servers = space.broker_ready(replicasPerGroup=2)
    space.wait_condition("topic.delaymq.io", "orders", "Ready", reason="InEveryGroup")
    _wait_in_sync(space)
    load = Load(space, name_servers)

    with load.during("API server unreachable for two minutes"), _without_api_server(lab):
        epoch = group_of(space)["epoch"]
        time.sleep(OUTAGE_S)
    _wait_in_sync(space)
    assert group_of(space)["epoch"] == epoch, "the master continued"

    deployment = operator.deployment()["metadata"]["name"]
    lab.cluster.kubectl("-n", operator.namespace, "scale", "deployment", deployment, "--replicas=0")
    former = _master_now(space)
    with load.during("master killed without an operator"):
        space.kubectl("delete", "pod", former, "--grace-period=0", "--force")
        _wait_other_master(space, former)
    lab.cluster.kubectl("-n", operator.namespace, "scale", "deployment", deployment, "--replicas=1")
    operator.wait_ready()
    _wait_in_sync(space)

    replica = next(each["name"] for each in group_of(space)["replicas"] if each["name"] != _master_now(space))
    with load.during("volume of the replica lost"):
        space.kubectl("delete", "pvc", f"store-{replica}", "--wait=false")
        space.kubectl("delete", "pod", replica, "--grace-period=0", "--force")
        wait_until("the volume is a new one", lambda: _is_new_volume(space, replica), timeout_s=120)
    _wait_in_sync(space)

    load.producer.stop()
    sends = load.producer.sends()
    verdict = space.judge_when_done("orders", sends, timeout_s=90)
    verdict.assert_clean()
    note(**load.gaps, **verdict.figures())


def _is_new_volume(space: Space, replica: str) -> bool:
    claim = space.find("pvc", f"store-{replica}")
    if claim is None or "deletionTimestamp" in claim["metadata"]:
        raise NotYetError("the claim is being deleted")
    return True
