"""NameServers of a Broker: allowed in its namespace or by the operator's list, kept while in use."""

from dataclasses import replace
from typing import Any

import pytest
from delaymq_operator.api.broker import Broker, parse_broker
from delaymq_operator.reconcile.context import ReconcileSettings
from delaymq_operator.reconcile.name_servers import foreign_addresses, is_listed, name_servers_of
from delaymq_operator_testing.fakes.world import FakeWorld
from delaymq_operator_testing.trees import copied
from delaymq_operator_testing.worlds.topic import TopicWorld

SETTINGS = ReconcileSettings(default_image="delaymq/broker:1")
THEIRS = "orders-namesrv.payroll:9876"


def broker_with(*addresses: str, used: tuple[str, ...] = ()) -> Broker:
    metadata = {"name": "demo", "namespace": "shop", "uid": "u"}
    status = {"nameServers": list(used)}
    return parse_broker(
        {"metadata": metadata, "spec": {"nameServers": {"addresses": list(addresses)}}, "status": status}
    )


def listing(*entries: str, domain: str = "svc") -> Any:
    world = FakeWorld(settings=replace(SETTINGS, name_server_addresses=entries, cluster_domain=domain))
    return world.world()


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("ns:9876", True),
        ("ns.shop:9876", True),
        ("NS.Shop.:9876", True),
        ("ns-0.ns-pods.shop:9876", True),
        ("ns.shop.svc:9876", True),
        ("ns-0.ns-pods.shop.svc.cluster.local:9876", True),
        ("ns.shop.svc.example.internal:9876", True),
        ("ns.payroll:9876", False),
        ("ns-0.ns-pods.payroll:9876", False),
        ("shop.payroll.svc:9876", False),
        ("ns.payroll.svc.cluster.local:9876", False),
        ("ns.shop.svc.payroll.svc.cluster.local:9876", False),
        ("ns.shop.payroll.example:9876", False),
        ("10.0.0.7:9876", False),
        ("[2001:db8::7]:9876", False),
        ("rocketmq.example.com:9876", False),
    ],
)
def test_address_is_classified_by_namespace(address: str, own: bool) -> None:
    world = listing(domain="svc.example.internal")
    assert foreign_addresses(broker_with(address), world) == (() if own else (address,))


@pytest.mark.parametrize(
    ("entry", "address", "fits"),
    [
        ("*", THEIRS, True),
        ("orders-namesrv.payroll", THEIRS, True),
        ("orders-namesrv.payroll:9876", THEIRS, True),
        ("orders-namesrv.payroll:9877", THEIRS, False),
        ("*.payroll", THEIRS, True),
        ("*.pay", THEIRS, False),
        ("10.20.0.0/16", "10.20.3.4:9876", True),
        ("10.20.0.0/16", "10.21.3.4:9876", False),
        ("10.20.0.0/16", "10.20.0.0.example.com:9876", False),
        ("10.20.3.4", "10.20.3.4:9876", True),
        ("2001:db8::/32", "[2001:db8::7]:9876", True),
    ],
)
def test_list_entries_match_hosts_patterns_and_networks(entry: str, address: str, fits: bool) -> None:
    assert is_listed(address, (entry,)) is fits


def test_bare_name_is_resolved_in_namespace_of_broker() -> None:
    broker = broker_with("ns:9876", "ns.shop:9876", "[::1]:9876", THEIRS, used=("[::1]:9876",))
    assert name_servers_of(broker, listing()) == ("ns.shop.svc:9876", "ns.shop:9876", "[::1]:9876")


def test_new_broker_waits_until_external_name_servers_are_listed() -> None:
    world = FakeWorld()
    world.create(size=1, nameServers={"addresses": [THEIRS]})
    world.run(lambda: world.reason("Degraded") == "NameServerNotAllowed")
    message = world.condition("Degraded")["message"]
    assert f"{THEIRS} is outside namespace default" in message
    assert "nameServerAddresses" in message
    assert any("NameServerNotAllowed" in str(event) for event in world.kube.events)
    assert (world.reason("Ready"), world.reason("Stalled")) == ("InvalidSpec", "NameServerNotAllowed")
    world.idle(3)
    assert world.names("StatefulSet") == []
    assert not world.status.get("nameServers")
    world.settings = replace(SETTINGS, name_server_addresses=("*.payroll",))
    world.annotate(seen="again")  # a starting operator reconciles everything
    world.run(lambda: world.settled)
    assert world.condition("Degraded")["status"] == "False"
    assert world.status["nameServers"] == [THEIRS]


def test_name_servers_in_use_are_kept_with_warning() -> None:
    world = FakeWorld(settings=replace(SETTINGS, name_server_addresses=("*",)))
    world.create(size=1, nameServers={"addresses": [THEIRS]})
    world.run(lambda: world.settled)
    before = world.pod_uids()
    world.settings = SETTINGS  # simulates an upgrade
    world.run(lambda: world.reason("Degraded") == "NameServerNotListed")
    assert "already in use and therefore kept" in world.condition("Degraded")["message"]
    world.run(lambda: world.settled)
    world.change(config={"fileReservedTime": "9"})
    world.run(lambda: world.settled)
    assert world.pod_uids() == before
    # An additional address is rejected, and the one in use is kept.
    world.change(nameServers={"addresses": [THEIRS, "other.payroll:9876"]})
    world.run(lambda: "other.payroll:9876 is outside" in world.condition("Degraded")["message"])
    assert world.status["nameServers"] == [THEIRS]
    assert world.pod_uids() == before


def test_topic_does_not_change_disallowed_name_servers() -> None:
    world = TopicWorld(groups=1)
    world.kube.change("Broker", "demo", nameServers={"addresses": [THEIRS]})
    body = copied(world.kube.objects["Broker", "ns", "demo"])
    assert name_servers_of(parse_broker(body), world.world) == ()
    body.setdefault("status", {})["nameServers"] = [THEIRS]
    assert name_servers_of(parse_broker(body), world.world) == (THEIRS,)
