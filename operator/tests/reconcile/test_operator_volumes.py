"""Growth, reuse and deletion of volumes."""

import pytest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld

CLAIM = "store-demo-broker-0-0"


@pytest.fixture
def world() -> FakeWorld:
    found = FakeWorld()
    found.create(size=1)
    found.run()
    found.kube.requests.clear()
    return found


def size_of(world: FakeWorld, kind: str, name: str) -> str:
    body = world.existing(kind, name)
    claim = body if kind == "PersistentVolumeClaim" else body["spec"]["volumeClaimTemplates"][0]
    size: str = claim["spec"]["resources"]["requests"]["storage"]
    return size


def test_claim_and_stateful_set_get_new_size_without_pod_restart(world: FakeWorld) -> None:
    before = world.pod_uids()
    old = world.existing("StatefulSet", "demo-broker-0")["metadata"]["uid"]
    world.change(storage={"size": "20Gi"})
    world.idle(1)
    world.run()
    assert size_of(world, "PersistentVolumeClaim", CLAIM) == "20Gi"
    assert size_of(world, "StatefulSet", "demo-broker-0") == "20Gi"
    new = world.existing("StatefulSet", "demo-broker-0")["metadata"]["uid"]
    assert new != old
    assert world.pod_uids() == before
    assert world.existing("Pod", "demo-broker-0-0")["metadata"]["ownerReferences"][0]["uid"] == new
    assert world.status["groups"][0]["storage"] == {"requested": "20Gi", "capacity": "20Gi"}


def test_equivalent_size_changes_nothing(world: FakeWorld) -> None:
    world.change(storage={"size": "10240Mi"})
    world.idle(10)
    assert ("delete", "StatefulSet", "demo-broker-0") not in world.kube.requests
    assert ("patch", "PersistentVolumeClaim", CLAIM) not in world.kube.requests


def test_storage_class_without_expansion_is_reported_and_not_retried(world: FakeWorld) -> None:
    world.kube.can_grow = False
    before = world.pod_uids()
    world.change(storage={"size": "20Gi"})
    world.idle(120)
    assert world.reason("Degraded") == "VolumeCannotGrow"
    assert "only dynamically provisioned pvc can be resized" in world.condition("Degraded")["message"]
    assert world.kube.requests.count(("patch", "PersistentVolumeClaim", CLAIM)) == 1
    assert ("delete", "StatefulSet", "demo-broker-0") not in world.kube.requests
    assert world.pod_uids() == before
    assert world.status["readyGroups"] == 1
    world.kube.can_grow = True
    world.run(lambda: size_of(world, "StatefulSet", "demo-broker-0") == "20Gi")
    world.run()
    assert world.condition("Degraded")["status"] == "False"


def test_growth_waits_for_new_capacity(world: FakeWorld) -> None:
    tick = world.kube.tick

    def without_resizer() -> None:
        tick()
        claim = world.kube.objects["PersistentVolumeClaim", NAMESPACE, CLAIM]
        if claim["status"]["capacity"]["storage"] == "20Gi":
            waits = {"type": "FileSystemResizePending", "status": "True", "message": "Waiting for the kubelet"}
            claim["status"] = {"phase": "Bound", "capacity": {"storage": "10Gi"}, "conditions": [waits]}

    world.kube.tick = without_resizer
    world.change(storage={"size": "20Gi"})
    world.idle(30)
    assert world.reason("Progressing") == "GrowingVolumes"
    assert "Waiting for the kubelet" in world.condition("Progressing")["message"]
    assert world.status["groups"][0]["storage"] == {"requested": "20Gi", "capacity": "10Gi"}
    world.kube.tick = tick
    world.run()


def test_larger_volume_than_specified_is_kept(world: FakeWorld) -> None:
    world.kube.objects["PersistentVolumeClaim", NAMESPACE, CLAIM]["spec"]["resources"]["requests"]["storage"] = "50Gi"
    world.change(storage={"size": "20Gi"})
    world.idle(1)
    world.run()
    assert size_of(world, "PersistentVolumeClaim", CLAIM) == "50Gi"


def test_volumes_of_earlier_broker_are_reused_with_messages_and_address(world: FakeWorld) -> None:
    address = world.existing("Service", "demo-broker-0")["spec"]["clusterIP"]
    store = world.brokers.stores[CLAIM]
    world.kube.remove("Broker", NAMESPACE, "demo")
    world.idle(8)
    assert world.names("Pod") == []
    assert world.names("Service") == []
    assert world.names("PersistentVolumeClaim") == [CLAIM]
    world.create(size=1)
    world.run()
    assert world.brokers.running["demo-broker-0-0"].store is store
    assert world.existing("Service", "demo-broker-0")["spec"]["clusterIP"] == address
    assert world.status["groups"][0]["address"] == f"{address}:10911"


def test_volumes_with_delete_claim_are_deleted_with_broker(world: FakeWorld) -> None:
    world.change(storage={"deleteClaim": True})
    world.idle(1)
    world.run()
    world.kube.remove("Broker", NAMESPACE, "demo")
    world.idle(8)
    assert world.names("PersistentVolumeClaim") == []


def test_pod_with_volume_being_deleted_is_not_restarted(world: FakeWorld) -> None:
    before = world.pod_uids()
    claim = world.kube.objects["PersistentVolumeClaim", NAMESPACE, CLAIM]
    claim["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    world.change(flush="Sync")
    world.idle(60)
    assert world.pod_uids()["demo-broker-0-0"] == before["demo-broker-0-0"]
    assert world.reason("Degraded") == "VolumeBeingDeleted"
    assert "Back up the volume" in world.condition("Degraded")["message"]
    assert (
        "volume store-demo-broker-0-0 would be deleted when the pod stops" in world.condition("Progressing")["message"]
    )


def test_volume_deleted_at_last_moment_keeps_its_pod(world: FakeWorld) -> None:
    before = world.pod_uids()
    world.change(flush="Sync")
    world.tick()
    world.reconcile()
    world.tick()
    claim = world.kube.objects["PersistentVolumeClaim", NAMESPACE, CLAIM]
    claim["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    assert world.kube.requests.count(("delete", "Pod", "demo-broker-0-0")) == 0
    world.kube.requests.clear()
    world.reconcile()
    assert ("list", "PersistentVolumeClaim", "") in world.kube.requests
    assert world.pod_uids() == before
    assert ("delete", "Pod", "demo-broker-0-0") not in world.kube.requests
