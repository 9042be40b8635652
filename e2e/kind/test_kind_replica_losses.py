"""Losses around a group with replicas, while our clients and RocketMQ's send and consume: brokers, nodes, volumes, the
API server and the operator.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kind import objects
from kind.clients import JAVA_POD, JavaClient
from kind.group_load import STORED, TOPICS, GroupLoad
from kind.groups import LEVELS, PODS, RATE, REGISTER, group_of
from kind.lab import Lab, Operator
from kind.lost_nodes import LostNodes
from kind.space import Space, condition
from kind.verdict import longest_gap_s
from kind.waiting import NotYetError, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

API_SERVER_PORT = "6443"
OUTAGE_S = 120.0
STALL_S = 15.0
RUNS_S, PAUSES_S = 0.1, 0.9
"""A slow replica runs for a tenth of the time, as one that waits for its disk."""
OBSERVED_S = 5.0
CONNECTS_TOPIC, CONNECTS = "connects", 1_000


def _master_now(space: Space) -> str:
    """Return the master as the register states it: the operator may not run."""
    lease = space.get("lease", REGISTER)
    return str(lease["spec"].get("holderIdentity", ""))


def _replica_now(space: Space) -> str:
    master = _master_now(space)
    return next(str(each["name"]) for each in group_of(space)["replicas"] if each["name"] != master)


def _wait_other_master(space: Space, former: str, *, timeout_s: float = 90.0) -> str:
    def ask() -> str:
        now = _master_now(space)
        if now and now != former:
            return now
        raise NotYetError(f"the master is {now}")

    return wait_until("another member is the master", ask, timeout_s=timeout_s)


def _wait_in_sync(space: Space, *, timeout_s: float = 240.0) -> None:
    """Wait until the operator has seen the fault, and then, that all members run and are in sync."""
    time.sleep(OBSERVED_S)
    for name in PODS:
        space.wait_pod_ready(name, timeout_s=timeout_s)

    def ask() -> bool:
        state = condition(space.broker(), "ReplicasInSync")
        if state.get("status") == "True":
            return True
        raise NotYetError(str(state))

    wait_until("all replicas are in sync", ask, timeout_s=timeout_s)


def _switch_over(space: Space) -> None:
    space.kubectl("exec", _master_now(space), "--", "delaymq", "replica", "switchover", _replica_now(space))


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


@contextmanager
def _without_operator(lab: Lab, operator: Operator) -> Iterator[None]:
    deployment = operator.deployment()["metadata"]["name"]
    scale = ("-n", operator.namespace, "scale", "deployment", deployment)
    lab.cluster.kubectl(*scale, "--replicas=0")
    try:
        yield
    finally:
        lab.cluster.kubectl(*scale, "--replicas=1")
        operator.wait_ready()


def test_group_serves_clients_through_losses_of_all_around_it(
    lab: Lab,
    operator: Operator,
    spaces: Callable[..., Space],
    nodes: LostNodes,
    note: Callable[..., None],
    tmp_path: Path,
) -> None:
    space = spaces("losses")
    requests = {"cpu": "50m", "memory": "256Mi"}
    space.apply(objects.client_pod(JAVA_POD, lab.java_client_image(), requests=requests))
    space.apply(*(objects.topic(name, queues=4) for name in (*TOPICS, CONNECTS_TOPIC)))
    # One NameServer would be lost together with its node.
    name_servers = space.broker_ready(
        replicasPerGroup=2, nameServers={"replicas": 2, "resources": {"requests": objects.SMALL_REQUESTS}}
    )
    for name in (*TOPICS, CONNECTS_TOPIC):
        space.wait_condition("topic.delaymq.io", name, "Ready", reason="InEveryGroup")
    _wait_in_sync(space)
    space.wait_pod_ready(JAVA_POD)
    with JavaClient(space, tmp_path) as java:
        load = GroupLoad(space, name_servers, java)
        _lose_members(space, load)
        _lose_node(space, load, nodes)
        with _without_operator(lab, operator):
            _lose_pod_of_master(space, load)
        _lose_api_server(lab, space, load)
        connects = _connect_during_switchover(space, name_servers, load)
        figures = load.judge()
    note(gaps=load.gaps, connects=connects, **figures)
    assert connects == {"acknowledged": CONNECTS, "failed": 0}
    # Statuses mean that the message was stored.
    assert set(load.gaps["switchover"]["failed"]) <= set(STORED)


def _lose_members(space: Space, load: GroupLoad) -> None:
    with load.during("switchover"):
        former = _master_now(space)
        _switch_over(space)
        _wait_other_master(space, former)
    _wait_in_sync(space)
    with load.during("master killed"):
        former = _master_now(space)
        space.kill_broker_process(former)
        _wait_other_master(space, former)
    _wait_in_sync(space)
    with load.during("replica killed"):
        space.kill_broker_process(_replica_now(space))
    _wait_in_sync(space)
    with load.during("replica stalled"):
        replica = _replica_now(space)
        space.signal_broker_process(replica, "STOP")
        time.sleep(STALL_S)
        space.signal_broker_process(replica, "CONT")
    _wait_in_sync(space)
    with load.during("replica slowed to a tenth"):
        _slow_down(space, _replica_now(space))
    _wait_in_sync(space)
    with load.during("volume of the replica lost"):
        replica = _replica_now(space)
        space.kubectl("delete", "pvc", f"store-{replica}", "--wait=false")
        space.kubectl("delete", "pod", replica, "--grace-period=0", "--force")
        wait_until("the volume is a new one", lambda: _is_new_volume(space, replica), timeout_s=120)
    _wait_in_sync(space)


def _slow_down(space: Space, replica: str) -> None:
    ends_s = time.monotonic() + STALL_S
    try:
        while time.monotonic() < ends_s:
            space.signal_broker_process(replica, "STOP")
            time.sleep(PAUSES_S)
            space.signal_broker_process(replica, "CONT")
            time.sleep(RUNS_S)
    finally:
        space.signal_broker_process(replica, "CONT")


def _lose_node(space: Space, load: GroupLoad, nodes: LostNodes) -> None:
    with load.during("node of the master lost"):
        former = _master_now(space)
        home = space.pod(former)["spec"]["nodeName"]
        nodes.lose(home)
        _wait_other_master(space, former)
    nodes.give_back(home)
    _wait_in_sync(space)


def _lose_pod_of_master(space: Space, load: GroupLoad) -> None:
    with load.during("master's pod lost without an operator"):
        former = _master_now(space)
        space.kubectl("delete", "pod", former, "--grace-period=0", "--force")
        _wait_other_master(space, former)


def _lose_api_server(lab: Lab, space: Space, load: GroupLoad) -> None:
    _wait_in_sync(space)
    epoch = group_of(space)["epoch"]
    with load.during("API server unreachable for two minutes"), _without_api_server(lab):
        time.sleep(OUTAGE_S)
    _wait_in_sync(space)
    assert group_of(space)["epoch"] == epoch, "the master continued"


def _connect_during_switchover(space: Space, name_servers: str, load: GroupLoad) -> object:
    """Start many clients one at a time while the master changes; return their results."""
    with load.during("switchover with new connections"):
        connects = space.client.start(
            "connects", name_servers=name_servers, topic=CONNECTS_TOPIC, count=CONNECTS, at_most_s=300
        )
        connects.wait_lines("ready", timeout_s=30)
        time.sleep(2)
        _switch_over(space)
        return connects.result()


def _is_new_volume(space: Space, replica: str, *, before: str = "") -> bool:
    claim = space.find("pvc", f"store-{replica}")
    if claim is None or "deletionTimestamp" in claim["metadata"] or claim["metadata"]["uid"] == before:
        raise NotYetError("the claim is being deleted")
    return True


@contextmanager
def _with_values(operator: Operator, **values: object) -> Iterator[None]:
    operator.upgrade(**values)
    try:
        yield
    finally:
        operator.upgrade()


def test_volume_of_a_deleted_node_is_replaced_by_the_operator(
    lab: Lab, operator: Operator, spaces: Callable[..., Space], nodes: LostNodes, note: Callable[..., None]
) -> None:
    space = spaces("deleted")
    space.apply(objects.topic("orders", queues=4))
    with _with_values(operator, rbac={"lostVolumes": True}):
        name_servers = space.broker_ready(
            replicasPerGroup=2,
            replication={"replaceLostVolumesAfterSeconds": 60},
            nameServers={"replicas": 2, "resources": {"requests": objects.SMALL_REQUESTS}},
        )
        space.wait_condition("topic.delaymq.io", "orders", "Ready", reason="InEveryGroup")
        _wait_in_sync(space)
        producer = space.client.produce(
            topic="orders", name_servers=name_servers, rate=RATE, levels=LEVELS, at_most_s=600
        )
        producer.wait_lines("sent", 2 * RATE, timeout_s=60)
        former = _master_now(space)
        before = space.get("pvc", f"store-{former}")["metadata"]["uid"]
        home = space.pod(former)["spec"]["nodeName"]
        nodes.lose(home)
        lab.cluster.kubectl("delete", "node", home, "--wait=false")
        began = time.monotonic()
        _wait_other_master(space, former)
        space.wait_condition("broker.delaymq.io", "demo", "Degraded", reason="VolumeLost", timeout_s=120)
        reported_s = time.monotonic() - began
        wait_until(
            "the volume is a new one", lambda: _is_new_volume(space, former, before=before), timeout_s=240, every_s=2
        )
        replaced_s = time.monotonic() - began
        # A new machine with the name of the former one.
        nodes.give_back(home)
        _wait_in_sync(space)
        assert "ReplacingVolume" in {event["reason"] for event in space.list("events.events.k8s.io")}
        producer.wait_lines("sent", len(producer.lines("sent")) + 2 * RATE, timeout_s=60)
        producer.stop()
        sends = producer.sends()
        verdict = space.judge_when_done("orders", sends)
        verdict.assert_clean()
    note(reported_s=reported_s, replaced_s=replaced_s, gap_s=longest_gap_s(sends), **verdict.figures())
