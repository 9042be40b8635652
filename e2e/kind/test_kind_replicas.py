"""Groups with replicas: a lost master, a deleted register, a rollout under load, and replicas added and removed."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kind import objects
from kind.clients import JAVA_POD, JavaClient, Program
from kind.groups import LEVELS, PODS, RATE, REGISTER, group_of, lose_master, wait_in_sync
from kind.lab import Lab
from kind.space import Space
from kind.verdict import longest_gap_s
from kind.waiting import wait_until

pytestmark = pytest.mark.timeout(240)

BROKER = "broker.delaymq.io"
JAVA_RATE = 20


def _addresses(space: Space, service: str) -> list[str]:
    slices = space.list("endpointslices", f"kubernetes.io/service-name={service}")
    return [ip for each in slices for endpoint in each["endpoints"] or [] for ip in endpoint["addresses"]]


def _send_more(producer: Program, count: int = 2 * RATE) -> None:
    producer.wait_lines("sent", len(producer.lines("sent")) + count, timeout_s=60)


def _failures(producer: Program, since: int) -> dict[str, int]:
    """Return the number of failed sends by reason, without the first ``since`` ones."""
    return dict(Counter(line[-1][:60] for line in producer.lines("failed")[since:]))


def _judge(space: Space, producer: Program) -> dict[str, Any]:
    """Stop the producer; return the figures of a clean verdict from the log of the first broker."""
    producer.stop()
    sends = producer.sends()
    verdict = space.judge_when_done("orders", sends)
    verdict.assert_clean()
    return {"gap_s": longest_gap_s(sends), "stored_again": verdict.stored_again, **verdict.figures()}


def test_replica_serves_clients_at_the_same_address_after_the_master_was_killed(
    lab: Lab, spaces: Callable[..., Space], note: Callable[..., None], tmp_path: Path
) -> None:
    space = spaces("replicas")
    java_requests = {"cpu": "50m", "memory": "192Mi"}
    space.apply(objects.client_pod(JAVA_POD, lab.java_client_image(), requests=java_requests))
    space.apply(objects.topic("orders", queues=4), objects.topic("java", queues=4))
    name_servers = space.broker_ready(replicasPerGroup=2)
    space.wait_condition("topic.delaymq.io", "orders", "Ready", reason="InEveryGroup")
    before = wait_in_sync(space)
    assert {each["node"] for each in before["replicas"]} == {space.pod(name)["spec"]["nodeName"] for name in PODS}
    assert len({each["node"] for each in before["replicas"]}) == 2
    producer = space.client.produce(topic="orders", name_servers=name_servers, rate=RATE, levels=LEVELS)
    consumer = space.client.consume(topic="orders", group="readers", name_servers=name_servers)
    space.wait_pod_ready(JAVA_POD)
    with JavaClient(space, tmp_path) as java:
        sending = java.send(
            namesrv=name_servers, topic="java", threads=2, rate=JAVA_RATE, seconds=200, levels=LEVELS, retries=5,
            timeout_ms=15_000,
        )  # fmt: skip
        _send_more(producer)
        figures = _fail_over(space, producer)
        java.stop_sending()
        sending.result(60)
        attempts = java.attempts("java")
    figures |= _found_again_and_roll(space, producer)
    figures |= _judge(space, producer)
    by_java = space.judge_when_done("java", attempts, by_unique_key=True)
    by_java.assert_clean()
    wait_until(
        "the consumer has every acknowledged message",
        lambda: (
            {send.key for send in producer.sends() if not send.failure} <= {line[0] for line in consumer.lines("got")}
        ),
        timeout_s=60,
    )
    reasons = {event["reason"] for event in space.list("events.events.k8s.io")}
    assert {"MasterChanged", "SwitchingOver", "RegisterRecreated"} <= reasons, reasons
    note(**figures, java=by_java.figures())


def _fail_over(space: Space, producer: Program) -> dict[str, Any]:
    """Kill the master while messages are sent; return figures."""
    before = group_of(space)
    began = time.monotonic()
    after = lose_master(space)
    failover_s = time.monotonic() - began
    _send_more(producer)
    assert after["address"] == before["address"]
    assert after["epoch"] > before["epoch"]
    assert _addresses(space, "demo-broker-0") == [space.pod(after["master"])["status"]["podIP"]]
    wait_in_sync(space)
    return {"failover_s": failover_s, "failed_in_failover": _failures(producer, 0)}


def _found_again_and_roll(space: Space, producer: Program) -> dict[str, Any]:
    """Delete the register, and roll, while messages are sent; return figures."""
    space.kubectl("delete", "lease", REGISTER)
    founded = wait_until(
        "the members have written the register again",
        lambda: (space.find("lease", REGISTER) or {}).get("spec", {}).get("holderIdentity"), timeout_s=60,
    )  # fmt: skip
    assert founded in PODS
    _send_more(producer)
    wait_in_sync(space)

    uids = space.pod_uids("app.kubernetes.io/component=broker")
    failed_before = len(producer.lines("failed"))
    began = time.monotonic()
    space.apply_broker(replicasPerGroup=2, resources={"requests": {**objects.SMALL_REQUESTS, "cpu": "11m"}})
    wait_in_sync(space, timeout_s=150)
    rolled_s = time.monotonic() - began
    now = space.pod_uids("app.kubernetes.io/component=broker")
    assert all(now[name][0] != uid for name, (uid, _) in uids.items())
    _send_more(producer)
    failed_in_roll = _failures(producer, failed_before)
    # Statuses mean that the message was stored: the master is alone while its replica restarts.
    assert set(failed_in_roll) <= {"SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}, failed_in_roll
    return {"rolled_s": rolled_s, "failed_in_roll": failed_in_roll}


def test_replica_is_added_to_a_single_broker_and_removed_again(
    spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    space = spare()
    address = group_of(space)["address"]
    producer = space.client.produce(topic="orders", name_servers=space.name_servers(), rate=RATE, levels=LEVELS)
    _send_more(producer)
    began = time.monotonic()
    space.patch(BROKER, "demo", {"spec": {"replicasPerGroup": 2}})
    group = wait_in_sync(space, timeout_s=120)
    added_s = time.monotonic() - began
    assert (group["master"], group["address"]) == (PODS[0], address)
    assert "selector" not in space.get("service", "demo-broker-0")["spec"]
    assert _addresses(space, "demo-broker-0") == [space.pod(PODS[0])["status"]["podIP"]]
    assert space.find("endpoints", "demo-broker-0") is None
    _send_more(producer)
    began = time.monotonic()
    space.patch(BROKER, "demo", {"spec": {"replicasPerGroup": 1}})
    space.wait_broker_ready(timeout_s=120)
    removed_s = time.monotonic() - began
    assert space.find("pod", PODS[1]) is None
    assert space.find("pvc", f"store-{PODS[1]}") is not None
    _send_more(producer)
    assert group_of(space)["address"] == address
    note(added_s=added_s, removed_s=removed_s, **_judge(space, producer))
