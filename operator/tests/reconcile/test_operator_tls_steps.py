"""Changes of spec.tls.mode in a simulated cluster: all connections stay possible, also if pods are lost meanwhile."""

import base64
import random
from collections.abc import Mapping
from typing import Any

import pytest
from delaymq_operator.manifests.tls import enforces, mounted_certificate
from delaymq_operator.reconcile.certificates import issue, new_authority
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.worlds.settled import is_ready, watch_rolls
from delaymq_testing.repetitions import SEED

PERMISSIVE: dict[str, Any] = {"tls": {"generate": {}}}
ENFORCING: dict[str, Any] = {"tls": {"generate": {}, "mode": "enforcing"}}
NONE: dict[str, Any] = {"tls": None}
SHAPES: dict[str, dict[str, Any]] = {
    "one": {},
    "groups": {"size": 2, "nameServers": {"replicas": 2}},
    "replicas": {"replicasPerGroup": 3, "nameServers": {"replicas": 3}},
}


def created(**spec: Any) -> FakeWorld:
    world = FakeWorld()
    world.create(**{key: value for key, value in spec.items() if value is not None})
    world.run()
    return world


def pods(world: FakeWorld, component: str) -> list[Manifest]:
    return list(world.kube.select("Pod", NAMESPACE, {"app.kubernetes.io/component": component}))


def variables(pod: Manifest) -> Mapping[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0].get("env", [])}


def problem(client: Manifest, server: Manifest) -> str:
    """Return why a broker cannot connect to a server; empty: it can."""
    env = variables(client)
    dials = "true" in (env.get("DELAYMQ_USE_TLS"), env.get("DELAYMQ_TLS_ENABLE"))
    names = f"{client['metadata']['name']} to {server['metadata']['name']}"
    if enforces(server) and not dials:
        return f"{names}: plaintext, and the server requires TLS"
    if env.get("DELAYMQ_TLS_CLIENT_AUTH_SERVER") == "true" and mounted_certificate(server) is None:
        return f"{names}: the server has no certificate"
    return ""


def watch_connections(world: FakeWorld) -> None:
    """Assert from now on that brokers can connect to NameServers and, in groups with replicas, to each other."""
    rolls = world.watch

    def watch() -> None:
        rolls()
        brokers, servers = pods(world, "broker"), pods(world, "namesrv")
        replicated = world.broker["spec"].get("replicasPerGroup", 1) > 1
        pairs = [(broker, server) for broker in brokers for server in servers + (brokers if replicated else [])]
        assert not [found for one, other in pairs if one is not other and (found := problem(one, other))]

    world.watch = watch


def is_enforced(world: FakeWorld) -> bool:
    found = [*pods(world, "broker"), *pods(world, "namesrv")]
    return bool(found) and all(enforces(pod) and is_ready(pod) for pod in found)


@pytest.mark.parametrize("shape", SHAPES)
def test_new_broker_requires_tls_from_its_first_pod(shape: str) -> None:
    world = FakeWorld()
    watch_connections(world)
    world.create(**ENFORCING, **SHAPES[shape])
    world.run()
    assert is_enforced(world)
    assert len(world.kube.started) == len(set(world.kube.started))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("before", "after"),
    [(PERMISSIVE, ENFORCING), (NONE, ENFORCING), (ENFORCING, PERMISSIVE), (NONE, PERMISSIVE), (PERMISSIVE, NONE)],
    ids=["enforce", "enforce-at-once", "permit", "add", "remove"],
)
def test_mode_changes_without_a_rejected_connection(shape: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    world = created(**before, **SHAPES[shape])
    if shape != "replicas":
        watch_rolls(world)
    watch_connections(world)
    world.change(**after)
    world.idle(1)
    world.run()
    assert is_enforced(world) == (after is ENFORCING)
    assert world.condition("Degraded")["status"] == "False"
    started = len(world.kube.started)
    world.idle(120)
    assert len(world.kube.started) == started


def test_broker_is_not_ready_in_the_new_mode_before_all_pods_have_it() -> None:
    world = created(**PERMISSIVE, **SHAPES["groups"])
    world.change(**ENFORCING)
    messages = set()

    def watch() -> bool:
        if world.status.get("observedGeneration") == world.broker["metadata"]["generation"]:
            ready = world.condition("Ready")
            assert (ready["status"] == "True") <= is_enforced(world), ready
            messages.add(ready["message"])
        return world.settled

    world.run(watch)
    assert any("NameServers will require TLS when all brokers use it" in message for message in messages)


@pytest.mark.parametrize("number", range(10))
def test_pods_lost_during_a_change_can_connect(number: int) -> None:
    chance = random.Random(f"{SEED} {number}")
    shape = chance.choice(sorted(SHAPES))
    before, after = chance.choice([(PERMISSIVE, ENFORCING), (NONE, ENFORCING), (ENFORCING, PERMISSIVE)])
    world = created(**before, **SHAPES[shape])
    watch_connections(world)
    world.change(**after)
    for _ in range(4):
        world.idle(chance.randint(1, 30))
        lost = chance.choice(world.names("Pod"))
        world.kube.remove("Pod", NAMESPACE, lost)
        if chance.random() < 0.3:
            world.restart_operator()
    world.run()
    assert is_enforced(world) == (after is ENFORCING)


def test_operator_reaches_brokers_of_both_modes_during_the_rollout() -> None:
    world = created(**PERMISSIVE, **SHAPES["groups"])
    world.change(**ENFORCING)
    world.run(lambda: world.settled or bool(world.reason("Degraded") == "BrokerUnreachable"))
    assert is_enforced(world)
    assert not any(reason == "BrokerUnreachable" for _, reason, _ in world.kube.events)


def test_group_added_to_an_enforcing_broker_requires_tls() -> None:
    world = created(**ENFORCING)
    before = world.pod_uids()
    watch_connections(world)
    world.change(size=2)
    world.run()
    assert is_enforced(world)
    assert before.items() <= world.pod_uids().items()


def put_secret(world: FakeWorld, **texts: str) -> None:
    data = {key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    world.kube.put({"kind": "Secret", "metadata": {"name": "certificate", "namespace": NAMESPACE}, "data": data})


def test_enforcing_needs_the_ca_of_the_certificate() -> None:
    authority, other = (new_authority("test", FakeWorld().now_ms, 30) for _ in range(2))
    pair = issue(authority, ["shop.example"], FakeWorld().now_ms, 7)
    files = {"tls_crt": pair.certificate, "tls_key": pair.key}
    world = FakeWorld()
    put_secret(world, **files)
    world.create(tls={"secretName": "certificate"})
    world.run()
    before = world.pod_uids()
    world.change(tls={"secretName": "certificate", "mode": "enforcing"})
    world.run(lambda: world.reason("Degraded") == "SecretMissing")
    assert "Secret certificate has no ca.crt: add it" in world.condition("Degraded")["message"]
    put_secret(world, **files, ca_crt=other.certificate)
    world.run(lambda: world.reason("Degraded") == "CertificateInvalid")
    assert "ca.crt the certificate of its issuer" in world.condition("Degraded")["message"]
    world.idle(30)
    assert world.pod_uids() == before
    put_secret(world, **files, ca_crt=authority.certificate)
    world.run(lambda: world.settled and is_enforced(world))
