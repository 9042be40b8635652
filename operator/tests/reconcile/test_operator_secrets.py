"""Missing or incomplete Secrets of a Broker: conditions, unchanged objects, recovery."""

import base64
from collections.abc import Collection

import pytest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld

WHOLE = {
    "rules": {"plain_acl.yml": "accounts: []", "accessKey": "operators", "secretKey": "operators-secret"},
    "certificate": {"tls.crt": "a certificate", "tls.key": "a key"},
}
SPEC = {"accessControl": {"secretName": "rules"}, "tls": {"secretName": "certificate"}}


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


def put(world: FakeWorld, name: str, *, without: Collection[str] = (), empty: Collection[str] = ()) -> None:
    texts = {key: "" if key in empty else text for key, text in WHOLE[name].items() if key not in without}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    world.kube.put({"kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data})


def degraded(world: FakeWorld) -> str:
    return world.reason("Degraded")


def test_nothing_is_created_until_secrets_exist(world: FakeWorld) -> None:
    world.create(size=1, **SPEC)
    world.run(lambda: degraded(world) == "SecretMissing")
    assert "Secret rules does not exist" in world.condition("Degraded")["message"]
    assert "plain_acl.yml" in world.condition("Degraded")["message"]
    put(world, "rules")
    world.run(lambda: "Secret certificate" in world.condition("Degraded")["message"])
    assert world.condition("Ready")["status"] == "False"
    assert world.names("Pod") == []
    put(world, "certificate")
    world.run(lambda: world.settled and degraded(world) == "AsExpected")


@pytest.mark.parametrize(
    ("name", "key", "field"),
    [
        ("rules", "plain_acl.yml", "spec.accessControl"),
        ("certificate", "tls.crt", "spec.tls"),
        ("certificate", "tls.key", "spec.tls"),
    ],
)
@pytest.mark.parametrize("how", ["without", "empty"])
def test_secret_without_required_key_is_treated_as_missing(
    world: FakeWorld, name: str, key: str, field: str, how: str
) -> None:
    for each in WHOLE:
        put(world, each, **({how: (key,)} if each == name else {}))
    world.create(size=1, **SPEC)
    world.run(lambda: degraded(world) == "SecretMissing")
    message = world.condition("Degraded")["message"]
    assert f"Secret {name} has no {key}: add it, or correct {field}.secretName;" in message
    assert world.names("Pod") == []
    put(world, name)
    world.run(lambda: world.settled and degraded(world) == "AsExpected")


def test_missing_secret_does_not_restart_running_broker(world: FakeWorld) -> None:
    world.create(size=2)
    world.run()
    before = world.pod_uids()
    world.change(**SPEC)
    world.run(lambda: degraded(world) == "SecretMissing")
    world.idle(60)
    assert world.pod_uids() == before
    for each in WHOLE:
        put(world, each)
    world.run(lambda: world.settled and degraded(world) == "AsExpected")
    after = world.pod_uids()
    assert not set(before.values()) & set(after.values())


def test_deleted_or_changed_secret_restarts_nothing(world: FakeWorld) -> None:
    for each in WHOLE:
        put(world, each)
    world.create(size=1, **SPEC)
    world.run()
    before = world.pod_uids()
    del world.kube.objects["Secret", NAMESPACE, "certificate"]
    world.run(lambda: degraded(world) == "SecretMissing")
    assert "The running pods are unchanged" in world.condition("Ready")["message"]
    put(world, "certificate")
    world.run(lambda: world.settled and degraded(world) == "AsExpected")
    assert world.pod_uids() == before


def test_broker_without_secrets_reads_only_its_token(world: FakeWorld) -> None:
    world.create(size=1)
    world.run()
    read = [call for call in world.calls if call.startswith("get ('Secret'")]
    assert read
    assert all("demo-http-token" in call for call in read)
