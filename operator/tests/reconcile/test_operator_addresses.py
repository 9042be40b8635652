"""The addresses that brokers advertise to clients."""

import copy

import pytest
from delaymq.api_types.broker import About
from delaymq_operator.reconcile.ports import Endpoint, Manifest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld

NODE_PORT = {"type": "NodePort", "advertisedAddress": "192.0.2.1"}


@pytest.fixture
def world() -> FakeWorld:
    found = FakeWorld()
    found.create(size=1)
    found.run()
    return found


def test_address_is_recorded_on_claim_and_requested_again(world: FakeWorld) -> None:
    address = world.existing("Service", "demo-broker-0")["spec"]["clusterIP"]
    annotations = world.existing("PersistentVolumeClaim", "store-demo-broker-0-0")["metadata"]["annotations"]
    assert annotations["delaymq.io/advertised-ip"] == address
    before = world.pod_uids()
    world.kube.remove("Service", NAMESPACE, "demo-broker-0")
    world.idle(1)
    world.run()
    assert world.existing("Service", "demo-broker-0")["spec"]["clusterIP"] == address
    assert world.pod_uids() == before


def test_address_taken_by_another_service_is_replaced_and_broker_restarted(world: FakeWorld) -> None:
    service = world.existing("Service", "demo-broker-0")
    address = service["spec"]["clusterIP"]
    world.kube.remove("Service", NAMESPACE, "demo-broker-0")
    other = {"kind": "Service", "metadata": {"name": "thief", "namespace": NAMESPACE}}
    world.kube.put(other | {"spec": {"clusterIP": address, "ports": []}})
    uid = world.pod_uids()["demo-broker-0-0"]
    world.idle(1)
    world.run()
    assert world.existing("Service", "demo-broker-0")["spec"]["clusterIP"] != address
    assert world.pod_uids()["demo-broker-0-0"] != uid
    assert any(reason == "AddressChanged" for _, reason, _ in world.kube.events)
    new = world.existing("Service", "demo-broker-0")["spec"]["clusterIP"]
    assert world.status["groups"][0]["address"] == f"{new}:10911"


def test_occupied_node_port_is_reported(world: FakeWorld) -> None:
    taken = {"name": "x", "port": 1, "nodePort": 30911}
    other = {"kind": "Service", "metadata": {"name": "thief", "namespace": NAMESPACE}}
    world.kube.put(other | {"spec": {"clusterIP": "10.9.9.9", "ports": [taken]}})
    before = world.pod_uids()
    world.change(external=NODE_PORT)
    world.run(lambda: world.reason("Degraded") == "NodePortTaken")
    world.idle(10)
    assert world.pod_uids() == before, "no pod is restarted for a port that it does not get"
    assert "30911" in world.condition("Degraded")["message"]
    assert "spec.external.brokerNodePort" in world.condition("Degraded")["message"]
    assert world.failures == []
    world.kube.remove("Service", NAMESPACE, "thief")
    world.run()
    assert world.condition("Degraded")["status"] == "False"
    assert world.existing("Service", "demo-broker-0-external")["spec"]["ports"][0]["nodePort"] == 30911


def test_group_waits_for_load_balancer_address() -> None:
    world = FakeWorld()
    world.create(size=1, external={"type": "LoadBalancer"})
    world.run(lambda: world.reason("Degraded") == "AddressPending")
    assert "spec.external.advertisedAddress" in world.condition("Degraded")["message"]
    assert world.names("StatefulSet") == ["demo-namesrv"]
    give_ingress(world, "demo-broker-0-external", {"hostname": "x.example"})
    world.idle(10)
    assert world.reason("Degraded") == "AddressPending"
    give_ingress(world, "demo-broker-0-external", {"ip": "192.0.2.9"})
    give_ingress(world, "demo-namesrv-external", {"ip": "192.0.2.10"})
    world.run()
    assert world.status["groups"][0]["address"] == "192.0.2.9:10911"
    assert world.status["externalNameServers"] == ["192.0.2.10:9876"]


def test_temporary_loss_of_load_balancer_address_restarts_nothing() -> None:
    world = FakeWorld()
    world.create(size=1, external={"type": "LoadBalancer"})
    world.idle(2)
    give_ingress(world, "demo-broker-0-external", {"ip": "192.0.2.9"})
    world.run()
    before = world.pod_uids()
    give_ingress(world, "demo-broker-0-external", {})
    world.idle(20)
    give_ingress(world, "demo-broker-0-external", {"ip": "192.0.2.9"})
    world.idle(1)
    world.run()
    assert world.pod_uids() == before


def give_ingress(world: FakeWorld, name: str, ingress: Manifest | None) -> None:
    service = copy.deepcopy(world.existing("Service", name))
    service["status"] = {"loadBalancer": {"ingress": [ingress] if ingress else []}}
    world.kube.put(service)


def test_advertised_ports_stay_reachable_while_ports_change() -> None:
    world = FakeWorld()
    world.create(size=3, networkPolicy={"enabled": True})
    world.run()
    told_ports = set()

    def watch() -> None:
        for group in range(3):
            broker = world.brokers.running.get(f"demo-broker-{group}-0")
            if broker is None:
                continue
            port = int(broker.address.rpartition(":")[2])
            told_ports.add(port)
            assert port in {each["port"] for each in world.existing("Service", f"demo-broker-{group}")["spec"]["ports"]}
            allowed = world.existing("NetworkPolicy", "demo-broker")["spec"]["ingress"][0]["ports"]
            assert {port, port - 2} <= {each["port"] for each in allowed}

    world.watch = watch
    world.change(external=NODE_PORT)
    world.idle(1)
    world.run()
    assert told_ports == {10911, 30911, 30921, 30931}
    assert [each["port"] for each in world.existing("Service", "demo-broker-1")["spec"]["ports"]] == [
        30921,
        30919,
        8080,
    ]
    world.change(external=None)
    world.idle(1)
    world.run()
    assert [each["port"] for each in world.existing("Service", "demo-broker-1")["spec"]["ports"]] == [
        10911,
        10909,
        8080,
    ]


def test_broker_is_queried_at_old_port_until_restart() -> None:
    world = FakeWorld()
    world.create(size=2)
    world.run()
    asked = []
    info = world.brokers.info

    async def noted(endpoint: Endpoint) -> About:
        asked.append(endpoint.broker_port)
        return await info(endpoint)

    world.brokers.info = noted
    world.change(external=NODE_PORT)
    world.step()
    assert asked == [10911, 10911]
    world.run()
    assert asked[-2:] == [30911, 30921]
