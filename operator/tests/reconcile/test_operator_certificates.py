"""Certificates that the operator issues, in a simulated cluster: names, renewal, replacement of the CA, kills."""

import base64
from typing import Any

import pytest
from delaymq_operator.reconcile.certificates import (
    DAY_MS,
    Pair,
    belong_together,
    facts_of,
    is_issued_by_one_of,
    split_bundle,
)
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.trees import copied

STEP_DAYS = 3
GENERATED: dict[str, Any] = {"tls": {"generate": {}}}


def created(**spec: Any) -> FakeWorld:
    world = FakeWorld()
    world.create(**(GENERATED | spec))
    world.run()
    return world


def texts(world: FakeWorld, secret: str = "demo-tls") -> dict[str, str]:
    data = world.existing("Secret", secret)["data"]
    return {key: base64.b64decode(text).decode() for key, text in data.items()}


def certificate(world: FakeWorld) -> str:
    return texts(world)["tls.crt"]


def assert_valid(world: FakeWorld) -> None:
    """Assert that servers have a matching, valid pair, and that clients trust its issuer."""
    found = texts(world)
    assert belong_together(Pair(certificate=found["tls.crt"], key=found["tls.key"]))
    facts = facts_of(found["tls.crt"])
    assert facts.created_ms <= world.now_ms < facts.ends_ms
    assert is_issued_by_one_of(found["tls.crt"], split_bundle(found["ca.crt"]))
    assert is_issued_by_one_of(found["tls.crt"], split_bundle(world.existing("ConfigMap", "demo-ca")["data"]["ca.crt"]))


def pass_days(world: FakeWorld, days: float) -> None:
    world.now_ms += int(days * DAY_MS)
    world.idle(15)


def test_new_broker_has_ca_and_certificate_before_its_pods() -> None:
    world = FakeWorld()

    def watch() -> None:
        if world.names("StatefulSet"):
            assert_valid(world)

    world.watch = watch
    world.create(**GENERATED)
    world.run()
    assert world.existing("Secret", "demo-tls")["type"] == "kubernetes.io/tls"
    assert set(texts(world)) == {"tls.crt", "tls.key", "ca.crt"}
    assert set(texts(world, "demo-ca")) == {"ca.crt", "ca.key"}
    assert "ca.key" not in world.existing("ConfigMap", "demo-ca")["data"]
    assert "PRIVATE" not in str(world.existing("ConfigMap", "demo-ca"))
    pods = str([world.get("Pod", name)["spec"] for name in world.names("Pod")])  # type: ignore[index]
    assert "demo-tls" in pods
    assert "demo-ca" not in pods


def test_certificate_names_all_services_and_addresses() -> None:
    world = created(size=2, external={"type": "NodePort", "advertisedAddress": "192.0.2.1"})
    found = set(facts_of(certificate(world)).names)
    services = ("demo-namesrv", "demo-namesrv-pods", "demo-broker-pods", "demo-broker-0", "demo-broker-1")
    domains = ("", ".default", ".default.svc", ".default.svc.cluster.local")
    assert {f"{service}{domain}" for service in services for domain in domains} <= found
    assert {"*.demo-namesrv-pods.default.svc", "*.demo-broker-pods.default.svc"} <= found
    cluster_ips = {
        body["spec"]["clusterIP"]
        for body in world.kube.select("Service", NAMESPACE, {})
        if body["spec"].get("clusterIP", "None") != "None" and body["metadata"]["name"] in services
    }
    assert len(cluster_ips) == 3
    assert {"localhost", "127.0.0.1", "192.0.2.1", *cluster_ips} <= found
    assert facts_of(certificate(world)).names[0] == "demo-broker-pods.default.svc"


def test_new_group_and_new_address_extend_the_certificate_without_restarts() -> None:
    world = created(size=1)
    pods, before = world.pod_uids(), certificate(world)
    world.change(size=2)
    world.run()
    assert "demo-broker-1" in facts_of(certificate(world)).names
    assert {name: uid for name, uid in world.pod_uids().items() if name in pods} == pods
    assert_valid(world)
    extended = certificate(world)
    assert extended != before
    world.change(size=1)
    world.run()
    assert certificate(world) == extended


def test_load_balancers_that_get_addresses_later_extend_the_certificate() -> None:
    world = FakeWorld()
    world.create(**GENERATED, external={"type": "LoadBalancer"})
    world.idle(20)
    assert world.names("Pod") == ["demo-namesrv-0"]
    for name, ingress in (
        ("demo-broker-0-external", {"ip": "203.0.113.7"}),
        ("demo-namesrv-external", {"hostname": "LB.example.com"}),
    ):
        service = copied(world.existing("Service", name))
        world.kube.put(service | {"status": {"loadBalancer": {"ingress": [ingress, {"hostname": "not a host"}]}}})
    world.run()
    assert {"203.0.113.7", "lb.example.com"} <= set(facts_of(certificate(world)).names)


def test_settled_broker_keeps_its_certificate_and_writes_nothing() -> None:
    world = created()
    before, ca = certificate(world), texts(world, "demo-ca")
    world.kube.requests.clear()
    pass_days(world, 1)
    world.restart_operator()
    world.idle(200)
    assert (certificate(world), texts(world, "demo-ca")) == (before, ca)
    assert [request for request in world.kube.writes() if "Secret" in request] == []


def test_certificate_is_renewed_after_two_thirds_of_its_lifetime_without_restarts() -> None:
    world = created()
    before, ca, pods = certificate(world), texts(world, "demo-ca"), world.pod_uids()
    pass_days(world, 59.9)
    assert certificate(world) == before
    pass_days(world, 0.2)
    assert certificate(world) != before
    assert_valid(world)
    assert (texts(world, "demo-ca"), world.pod_uids()) == (ca, pods)
    assert any(reason == "CertificateIssued" for _, reason, _ in world.kube.events)


@pytest.mark.parametrize("spec", [{"paused": True}, {"delayLevelConfigRef": {"name": "absent"}}])
def test_certificate_is_renewed_although_nothing_else_may_change(spec: dict[str, Any]) -> None:
    world = created()
    names = facts_of(certificate(world)).names
    world.change(**spec, size=2)
    world.idle(20)
    pass_days(world, 61)
    assert_valid(world)
    facts = facts_of(certificate(world))
    assert (facts.names, facts.created_ms > world.now_ms - DAY_MS) == (names, True)


def test_paused_new_broker_gets_no_certificate() -> None:
    world = FakeWorld()
    world.create(**GENERATED, paused=True)
    world.idle(20)
    assert world.names("Secret") == []


def test_changed_lifetime_issues_a_certificate_once() -> None:
    world = created()
    before = certificate(world)
    world.change(tls={"generate": {"validityDays": 7}})
    world.run()
    changed = certificate(world)
    facts = facts_of(changed)
    assert (changed != before, facts.ends_ms - facts.created_ms) == (True, 7 * DAY_MS)
    world.idle(200)
    assert certificate(world) == changed


@pytest.mark.parametrize("secret", ["demo-tls", "demo-ca"])
def test_deleted_secret_is_created_again_and_clients_keep_their_trust(secret: str) -> None:
    world = created()
    bundle, pods = texts(world)["ca.crt"], world.pod_uids()
    world.kube.remove("Secret", NAMESPACE, secret)
    world.idle(120)
    assert_valid(world)
    # Clients still have the certificates from before.
    assert is_issued_by_one_of(certificate(world), split_bundle(bundle))
    assert world.pod_uids() == pods


def test_unusable_pair_is_replaced() -> None:
    world = created()
    body = copied(world.existing("Secret", "demo-tls"))
    body["data"]["tls.key"] = base64.b64encode(b"garbage").decode()
    world.kube.put(body)
    world.idle(120)
    assert_valid(world)


def test_secret_of_a_user_is_not_taken_over() -> None:
    world = FakeWorld()
    theirs = {"kind": "Secret", "metadata": {"name": "demo-tls", "namespace": NAMESPACE}, "data": {"tls.crt": "eA=="}}
    world.kube.put(theirs)
    world.create(**GENERATED)
    world.run(lambda: world.reason("Degraded") == "NameConflict")
    assert "Secret demo-tls already exists" in world.condition("Degraded")["message"]
    assert world.existing("Secret", "demo-tls")["data"] == {"tls.crt": "eA=="}
    assert world.names("StatefulSet") == []


def test_ca_is_replaced_with_an_overlap_in_which_both_are_trusted() -> None:
    world = created(tls={"generate": {"validityDays": 30, "caValidityDays": 180}})
    world.watch = lambda: assert_valid(world)
    pods, bundles = world.pod_uids(), []
    for _ in range(2 * 180 // STEP_DAYS):
        bundles.append(split_bundle(texts(world)["ca.crt"]))
        pass_days(world, STEP_DAYS)
        # Clients that read ca.crt three weeks ago, or later, trust the present certificate.
        for earlier in bundles[-21 // STEP_DAYS :]:
            assert is_issued_by_one_of(certificate(world), earlier)
    assert len({bundle[0] for bundle in bundles}) == 3
    assert max(map(len, bundles)) == 2
    assert world.pod_uids() == pods


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("days", [61, 1217, 1217 + 31, 1826], ids=["renewal", "next-ca", "activation", "expiry"])
def test_operator_killed_at_any_call_leaves_a_valid_pair(days: int, after: bool) -> None:
    """From the moment at which something is due. Between two steps, servers and clients always agree."""

    def due(dies_at: int | None) -> FakeWorld:
        world = created()
        if days > 1217:
            pass_days(world, 1217)
        world.now_ms += (days - 1217 if days > 1217 else days) * DAY_MS
        world.calls.clear()
        world.dies_at, world.dies_after = dies_at, after
        world.idle(12)
        return world

    calls = list(due(None).calls)
    secrets = [
        number for number, call in enumerate(calls, 1) if "Secret" in call or "demo-ca" in call or "apply" in call
    ]
    assert len(secrets) >= 4
    for number in secrets[:8]:
        world = due(number)
        assert world.deaths == 1
        world.dies_at = None
        found = texts(world)
        assert belong_together(Pair(certificate=found["tls.crt"], key=found["tls.key"]))
        world.idle(80)
        assert_valid(world)
