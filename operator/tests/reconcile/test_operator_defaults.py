"""Default network policies: enabled for new Brokers, not enabled by an operator upgrade."""

from dataclasses import replace

import pytest
from delaymq_operator.reconcile.context import ReconcileSettings
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.trees import copied

INSIDE = ReconcileSettings(default_image="delaymq/broker:1", operator_namespace="ops")
BOTH = ["demo-broker", "demo-namesrv"]
EVERYBODY = [{"podSelector": {}}, {"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "::/0"}}]


def made_by_an_older_operator() -> FakeWorld:
    """Return a Broker with pods, without policies, and without `defaults` in its status."""
    world = FakeWorld(settings=replace(INSIDE, operator_namespace=""))
    world.create(size=1)
    world.run(lambda: world.settled)
    body = copied(world.broker)
    del body["status"]["defaults"]
    world.kube.put(body)
    world.memory.__init__()
    world.settings = INSIDE
    return world


def test_new_broker_has_policies() -> None:
    world = FakeWorld(settings=INSIDE)
    world.create(size=1)
    world.run(lambda: world.settled)
    assert world.names("NetworkPolicy") == BOTH
    assert world.status["defaults"] == 2


def test_upgrade_adds_no_policies_to_existing_broker_and_restarts_nothing() -> None:
    world = made_by_an_older_operator()
    before = world.pod_uids()
    world.run(lambda: world.status.get("defaults") == 1)
    world.run(lambda: world.settled)
    assert world.names("NetworkPolicy") == []
    assert world.pod_uids() == before
    world.change(networkPolicy={"enabled": True})
    world.run(lambda: world.settled and world.names("NetworkPolicy") == BOTH)


def test_spark_pods_follow_same_default() -> None:
    new, old = FakeWorld(settings=INSIDE), made_by_an_older_operator()
    new.create(size=1, analytics={})
    old.run(lambda: old.status.get("defaults") == 1)
    old.change(analytics={})
    for world in (new, old):
        world.run(lambda world=world: world.settled and world.reason("AnalyticsReady") == "NoRunYet")
    assert new.names("NetworkPolicy") == ["demo-analytics", *BOTH]
    assert old.names("NetworkPolicy") == []


@pytest.mark.parametrize("enabled", [True, False])
def test_explicit_setting_overrides_default(enabled: bool) -> None:
    world = FakeWorld(settings=INSIDE)
    world.create(size=1, networkPolicy={"enabled": enabled})
    world.run(lambda: world.settled)
    assert world.names("NetworkPolicy") == (BOTH if enabled else [])


def test_lost_status_removes_no_policies() -> None:
    world = FakeWorld(settings=INSIDE)
    world.create(size=1)
    world.run(lambda: world.settled)
    body = copied(world.broker)
    del body["status"]
    world.kube.put(body)
    world.memory.__init__()
    world.run(lambda: world.status.get("defaults") == 2)
    assert world.names("NetworkPolicy") == BOTH


def test_operator_outside_cluster_creates_no_policies_by_default() -> None:
    world = FakeWorld()
    world.create(size=1)
    world.run(lambda: world.settled)
    assert world.names("NetworkPolicy") == []


@pytest.mark.parametrize(("stated", "peers"), [({}, EVERYBODY), ({"enabled": True}, EVERYBODY[:1])])
def test_broker_with_external_access_admits_all_clients_by_default(
    stated: dict[str, bool], peers: list[object]
) -> None:
    world = FakeWorld(settings=INSIDE)
    external = {"type": "NodePort", "advertisedAddress": "192.0.2.1"}
    world.create(size=1, external=external, networkPolicy=stated)
    world.run(lambda: world.settled)
    policy = world.kube.objects["NetworkPolicy", NAMESPACE, "demo-namesrv"]
    clients = policy["spec"]["ingress"][0]["from"]
    assert [each for each in clients if each in EVERYBODY] == peers
