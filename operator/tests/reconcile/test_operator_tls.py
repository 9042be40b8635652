"""Connections of the operator: verified with TLS where a pod serves the certificate, otherwise in plaintext."""

import asyncio
import base64
import time
from typing import Any

import pytest
from delaymq_operator.api.broker import parse_broker
from delaymq_operator.reconcile.certificates import Pair, issue, new_authority, verification_name
from delaymq_operator.reconcile.name_servers import name_server_trust
from delaymq_operator.reconcile.ports import ServerTrust
from delaymq_operator.reconcile.secrets import parse_secret
from delaymq_operator.reconcile.topic.targets import groups_of
from delaymq_operator_testing.fakes.kube import FakeKube
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.worlds.topic import TopicWorld
from delaymq_operator_testing.worlds.topic_reconciling import settle

NOW_MS = int(time.time() * 1000)
AUTHORITY = new_authority("test", NOW_MS, 30)
MOUNTED = {"volumes": [{"name": "tls", "secret": {"secretName": "certificate"}}]}


def encoded(texts: dict[str, str]) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}}


def secret(*names: str, ca: str = AUTHORITY.certificate, pair: Pair | None = None) -> dict[str, Any]:
    pair = pair or issue(AUTHORITY, names or ("shop.example",), NOW_MS, 7)
    return encoded({"tls.crt": pair.certificate, "tls.key": pair.key} | ({"ca.crt": ca} if ca else {}))


def put_secret(kube: FakeKube, body: dict[str, Any]) -> None:
    kube.put({"kind": "Secret", "metadata": {"name": "certificate", "namespace": NAMESPACE}} | body)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.example", "b.example"], "a.example"),
        (["*.example", "b.example"], "b.example"),
        (["10.0.0.1", "*.shop.example"], "delaymq.shop.example"),
        (["10.0.0.1", "2001:db8::1"], "10.0.0.1"),
        (["a*.example"], ""),
        ([], ""),
    ],
)
def test_name_for_verification_is_one_of_the_certificate(names: list[str], expected: str) -> None:
    assert verification_name(names) == expected


def test_trust_is_read_from_secret_with_ca() -> None:
    found = parse_secret(secret("shop.example"), "certificate").trust
    assert found == ServerTrust(secret_name="certificate", ca=AUTHORITY.certificate, name="shop.example")
    assert "BEGIN" not in repr(found)


@pytest.mark.parametrize(
    "body",
    [
        secret(ca=""),
        secret(ca="garbage"),
        secret(ca="é"),
        secret(pair=AUTHORITY),  # it has no names
        encoded({"tls.crt": "garbage", "ca.crt": AUTHORITY.certificate}),
        {"data": {"tls.crt": 7, "ca.crt": "%%"}},
    ],
)
def test_secret_without_usable_ca_or_names_yields_no_trust(body: dict[str, Any]) -> None:
    assert parse_secret(body, "certificate").trust is None


def endpoints(world: FakeWorld) -> list[Any]:
    """Return the endpoints of a reconcile pass by group."""
    seen = {}
    given = world.brokers.info

    async def noted(endpoint: Any) -> Any:
        info = await given(endpoint)
        seen[info.broker_name] = endpoint
        return info

    world.brokers.info = noted
    world.reconcile()
    world.brokers.info = given
    return [seen[name] for name in sorted(seen)]


def test_pods_are_verified_once_they_have_the_certificate() -> None:
    world = FakeWorld()
    put_secret(world.kube, secret("shop.example"))
    world.create(size=2)
    world.run()
    assert [endpoint.tls for endpoint in endpoints(world)] == [None, None]
    world.change(tls={"secretName": "certificate"})
    found: set[tuple[bool, ...]] = set()

    def watch() -> bool:
        found.add(tuple(endpoint.tls is not None for endpoint in endpoints(world)))
        return world.settled

    world.run(watch)
    assert {(False, False), (True, False), (True, True)} <= found
    assert {endpoint.tls.name for endpoint in endpoints(world)} == {"shop.example"}


def test_pods_with_another_certificate_or_without_known_ca_are_reached_in_plaintext() -> None:
    world = FakeWorld()
    put_secret(world.kube, secret(ca=""))
    world.create(tls={"secretName": "certificate"})
    world.run()
    assert [endpoint.tls for endpoint in endpoints(world)] == [None]
    world.kube.put({"kind": "Secret", "metadata": {"name": "next", "namespace": NAMESPACE}} | secret("next.example"))
    world.change(tls={"secretName": "next"})
    assert [endpoint.tls for endpoint in endpoints(world)] == [None]
    world.run()
    assert [endpoint.tls.name for endpoint in endpoints(world)] == ["next.example"]


def test_brokers_with_generated_certificate_are_verified_by_its_first_name() -> None:
    world = FakeWorld()
    world.create(tls={"generate": {}})
    world.run()
    [endpoint] = endpoints(world)
    assert endpoint.tls is not None
    assert (endpoint.tls.secret_name, endpoint.tls.name) == ("demo-tls", "demo-broker-pods.default.svc")


def test_topic_requests_to_brokers_and_name_servers_are_verified() -> None:
    world = TopicWorld(groups=2)
    world.kube.change("Broker", "demo", tls={"secretName": "certificate"})
    world.kube.objects["Secret", "ns", "certificate"] = secret("shop.example")
    world.kube.objects["Pod", "ns", "demo-broker-0-0"]["spec"] = MOUNTED
    broker = parse_broker(world.kube.objects["Broker", "ns", "demo"])
    groups = asyncio.run(groups_of(broker, world.world))
    assert [group.endpoint is not None and group.endpoint.tls is not None for group in groups] == [True, False]
    key = world.add_topic("orders", queues=4, order=True)
    settle(world, key)
    address = world.name_server()
    assert world.brokers.trusts == {address: None}
    world.kube.objects["Pod", "ns", "demo-namesrv-0"] = {"metadata": {}, "spec": MOUNTED}
    world.now_ms += 60_000
    settle(world, key)
    trust = world.brokers.trusts[address]
    assert trust is not None
    assert trust.name == "shop.example"


def test_name_servers_of_others_are_reached_in_plaintext() -> None:
    world = TopicWorld(groups=1)
    world.kube.change("Broker", "demo", tls={"secretName": "certificate"}, nameServers={"addresses": ["a:9876"]})
    world.kube.objects["Secret", "ns", "certificate"] = secret("shop.example")
    world.kube.objects["Pod", "ns", "a:9876"] = {"metadata": {}, "spec": MOUNTED}
    broker = parse_broker(world.kube.objects["Broker", "ns", "demo"])
    assert asyncio.run(name_server_trust("a:9876", broker, world.world)) is None
