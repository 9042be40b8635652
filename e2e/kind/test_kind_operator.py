"""Operator life cycle: kills, upgrades, objects changed by others, and upgraded CRDs."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from kind import objects
from kind.lab import Lab, Operator
from kind.space import Space, signal_container_process
from kind.waiting import NotYetError, stays, wait_until

pytestmark = pytest.mark.timeout(420)

BROKER = "broker.delaymq.io"
NEXT = "-next"
KILLS = 4
KILL_EVERY_S = 6.0


def test_operator_killed_repeatedly_during_a_rollout_completes_it_without_failed_sends(
    lab: Lab, operator: Operator, spaces: Callable[..., Space], note: Callable[..., None]
) -> None:
    space = spaces("killed")
    space.apply(objects.topic("orders", queues=4))
    name_servers = space.broker_ready(size=2)
    space.wait_condition("topic.delaymq.io", "orders", "Ready", reason="InEveryGroup")
    before = space.pod_uids("app.kubernetes.io/component=broker")
    producer = space.client.produce(
        topic="orders", name_servers=name_servers, run="kills", rate=50, levels=objects.LEVEL_OF["1s"], at_most_s=300,
        route_interval_ms=5_000,
    )  # fmt: skip
    began = time.monotonic()
    space.annotate(BROKER, "demo", "delaymq.io/restart=kills")
    killed = 0
    for _ in range(KILLS):
        time.sleep(KILL_EVERY_S)
        pod = operator.pods()[0]
        if pod["status"]["containerStatuses"][0].get("state", {}).get("running"):
            signal_container_process(lab.cluster, pod, "KILL")
            killed += 1

    def rolled() -> bool:
        now = space.pod_uids("app.kubernetes.io/component=broker")
        if len(now) == 2 and all(now[name][0] != uid for name, (uid, _) in before.items()):
            return True
        raise NotYetError(f"{now}, was {before}")

    wait_until("both pods are new", rolled, timeout_s=200, every_s=1)
    space.wait_broker_ready()
    rolled_s = time.monotonic() - began
    producer.wait_lines("sent", len(producer.lines("sent")) + 50)
    producer.stop()
    assert killed >= 2, "the operator was not killed during the rollout"
    # Exactly one restart each: a new operator continues where the old one stopped.
    after = space.pod_uids("app.kubernetes.io/component=broker")
    assert all(restarts == 0 for _, restarts in after.values()), after
    verdict = space.judge_when_done("orders", producer.sends(), groups=2)
    verdict.assert_clean()
    verdict.assert_no_send_failed()
    operator.wait_ready()
    note(kills=killed, rolled_s=rolled_s, **verdict.figures())


def test_upgraded_operator_restarts_no_broker(
    lab: Lab, operator: Operator, spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    space = spare()
    before = space.pod_uids()
    resource_versions = _spec_generations(space)
    for name in ("operator", "broker"):
        lab.retag(lab.images[name], lab.images[name] + NEXT)
    old_pods = {pod["metadata"]["uid"] for pod in operator.pods()}
    # A newer release has a newer default image; existing brokers keep theirs until a user changes it.
    upgraded_s = operator.upgrade(tag_suffix=NEXT)
    try:
        wait_until(
            "only the new operator is there",
            lambda: {pod["metadata"]["uid"] for pod in operator.pods()}.isdisjoint(old_pods), timeout_s=60,
        )  # fmt: skip
        assert operator.pods()[0]["spec"]["containers"][0]["image"].endswith(NEXT)
        # The operator works: it updates the status after an annotation that restarts nothing.
        space.annotate(BROKER, "demo", "example.org/note=upgraded")
        _wait_new_operator_at_work(operator)
        stays("no broker restarts", lambda: space.pod_uids() == before, for_s=8, every_s=0.5)
        assert _spec_generations(space) == resource_versions
        up_to_date = space.condition(BROKER, "demo", "UpToDate")
    finally:
        operator.upgrade()
    stays("no broker restarts after the downgrade", lambda: space.pod_uids() == before, for_s=3, every_s=0.5)
    note(upgraded_s=upgraded_s, restarts=0, up_to_date=f"{up_to_date.get('status')} {up_to_date.get('reason')}")


def test_foreign_changes_of_managed_fields_are_reverted_and_other_fields_are_kept(
    operator: Operator, spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    space = spare()
    before = space.pod_uids()
    # Labels, annotations and fields of others.
    space.kubectl("label", "service", "demo-broker-0", "team=payments")
    space.kubectl("annotate", "configmap", "demo-broker-conf", "example.org/owner=payments")
    space.kubectl("label", "statefulset", "demo-broker-0", "team=payments")
    space.patch("service", "demo-namesrv", {"spec": {"sessionAffinity": "ClientIP"}})
    # Fields that belong to the operator.
    conf = space.get("configmap", "demo-broker-conf")["data"]
    key = next(iter(conf))
    ports = space.get("service", "demo-broker-0")["spec"]["ports"]
    began = time.monotonic()
    space.patch("configmap", "demo-broker-conf", {"data": {key: "brokerName=hacked\n"}})
    space.kubectl("patch", "service", "demo-broker-0", "--type=json", "-p", json.dumps(
        [{"op": "replace", "path": "/spec/ports/0/targetPort", "value": 1}]
    ))  # fmt: skip
    space.kubectl("delete", "pdb", "demo-broker")
    space.kubectl("scale", "statefulset", "demo-namesrv", "--replicas=3")
    repaired: dict[str, Callable[[], Any]] = {
        "ConfigMap": lambda: space.get("configmap", "demo-broker-conf")["data"] == conf,
        "Service": lambda: space.get("service", "demo-broker-0")["spec"]["ports"] == ports,
        "PodDisruptionBudget": lambda: space.find("pdb", "demo-broker"),
        "StatefulSet": lambda: space.get("statefulset", "demo-namesrv")["spec"]["replicas"] == 1,
    }
    for what, holds in repaired.items():
        wait_until(f"{what} is as the operator wants it", holds, timeout_s=30)
    repaired_s = time.monotonic() - began
    assert space.get("service", "demo-broker-0")["metadata"]["labels"]["team"] == "payments"
    assert space.get("statefulset", "demo-broker-0")["metadata"]["labels"]["team"] == "payments"
    assert space.get("configmap", "demo-broker-conf")["metadata"]["annotations"]["example.org/owner"] == "payments"
    assert space.get("service", "demo-namesrv")["spec"]["sessionAffinity"] == "ClientIP"
    assert {name: uid for name, uid in space.pod_uids().items() if name in before} == before
    note(repaired_s=repaired_s, restarts=0)


def test_crds_are_upgraded_while_resources_and_brokers_remain(
    lab: Lab, operator: Operator, spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    space = spare()
    before = space.pod_uids()
    uid = space.broker()["metadata"]["uid"]
    # As in an older release: without one column and one field.
    old = lab.cluster.get("crd", "brokers.delaymq.io")
    version = old["spec"]["versions"][0]
    version["additionalPrinterColumns"].pop()
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["paused"]
    old["metadata"] = {"name": old["metadata"]["name"]}
    lab.cluster.kubectl("replace", "-f", "-", input=json.dumps(old | {"status": None}))
    assert not _explains_paused(lab)
    began = time.monotonic()
    try:
        # Helm does not change existing CRDs.
        operator.upgrade_definitions()
    finally:
        wait_until("the new definition is served", lambda: _explains_paused(lab), timeout_s=30)
    upgraded_s = time.monotonic() - began
    space.patch(BROKER, "demo", {"spec": {"paused": True}})
    space.wait_condition(BROKER, "demo", "Paused", status="True")
    assert space.broker()["metadata"]["uid"] == uid
    assert space.pod_uids() == before
    note(upgraded_s=upgraded_s, restarts=0)


def _explains_paused(lab: Lab) -> bool:
    crd = lab.cluster.get("crd", "brokers.delaymq.io")
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return "paused" in properties


def _spec_generations(space: Space) -> dict[str, int]:
    """Return StatefulSet → generation, which increases with every change of a pod template."""
    return {each["metadata"]["name"]: each["metadata"]["generation"] for each in space.list("statefulsets")}


def _wait_new_operator_at_work(operator: Operator) -> None:
    """Wait until the new operator holds the lease and has reconciled."""

    def ask() -> bool:
        leases = operator.cluster.get("leases", namespace=operator.namespace)["items"]
        holders = [lease["spec"].get("holderIdentity") or "" for lease in leases]
        name = operator.pods()[0]["metadata"]["name"]
        if any(name in holder for holder in holders):
            return True
        raise NotYetError(f"{holders}, wanted {name}")

    wait_until("the new operator has the lease", ask, timeout_s=60)
