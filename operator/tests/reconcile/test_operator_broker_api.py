"""A Broker on a real API server with its controllers: defaults, server-side apply, orphans, garbage collection."""

from collections.abc import Iterator

import pytest
from delaymq_operator_testing.api_server import ApiError, ApiServer
from delaymq_operator_testing.fakes.world import FakeWorld
from delaymq_operator_testing.gitops import kstatus, wait_returns
from delaymq_operator_testing.worlds.broker_api import ApiWorld
from delaymq_operator_testing.worlds.settled import TRIAL

CLAIM = "store-demo-broker-0-0"


@pytest.fixture(scope="module")
def storage_classes(api_server_with_controllers: ApiServer) -> None:
    for name, grows in (("grows", True), ("fixed", False)):
        body = {"metadata": {"name": name}, "provisioner": "example.io/none", "allowVolumeExpansion": grows}
        api_server_with_controllers.create("/apis/storage.k8s.io/v1/storageclasses", body)


@pytest.fixture
def world(
    api_server_with_controllers: ApiServer, controlled_namespace: str, storage_classes: None
) -> Iterator[ApiWorld]:
    """Return a settled Broker in a namespace that enforces the restricted Pod Security Standard."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    path = f"/api/v1/namespaces/{controlled_namespace}"
    api_server_with_controllers.merge(path, {"metadata": {"labels": labels}})
    with ApiWorld(api_server_with_controllers, controlled_namespace) as found:
        found.create(storage={"size": "10Gi", "storageClassName": "grows"})
        found.run()
        found.calls.clear()
        yield found


def pods(world: ApiWorld) -> dict[str, str]:
    return {name: world.uid("Pod", name) for name in world.names("Pod")}


def test_settled_broker_sends_no_requests_despite_server_defaults(world: ApiWorld) -> None:
    for _ in range(5):
        world.step()
    assert world.calls == []
    assert world.failures == []
    assert world.status["groups"][0]["resumed"]["verdict"] == "Intact"


def test_modified_status_is_restored_with_one_write(world: ApiWorld) -> None:
    before = world.status
    world.merge("Broker", "demo", {"status": {"readyGroups": 0, "nameServers": None, "conditions": []}}, "status")
    world.step()
    world.look()
    assert world.status == before
    world.calls.clear()
    world.step()
    assert world.calls == []


def test_fake_api_server_creates_same_objects(world: ApiWorld) -> None:
    fake = FakeWorld()
    fake.create(storage={"size": "10Gi", "storageClassName": "grows"})
    fake.run()
    kinds = ("StatefulSet", "Pod", "Service", "ConfigMap", "PersistentVolumeClaim", "PodDisruptionBudget", "Secret")
    for kind in kinds:
        ours = [name for name in world.names(kind) if name.startswith(("demo", "store-demo"))]
        assert ours == fake.names(kind)


def test_rollout_replaces_each_pod_once(world: ApiWorld) -> None:
    before = pods(world)
    world.change(image="delaymq/broker:2")
    world.run(lambda: world.status.get("image") == "delaymq/broker:2")
    world.run()
    after = pods(world)
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    assert world.calls.count(("delete", "Pod")) == 2


def test_failing_image_is_tried_on_trial_pod_first(world: ApiWorld) -> None:
    before = pods(world)
    world.change(image="bad:image")
    world.run(lambda: TRIAL in world.names("Pod"))
    for _ in range(3):
        world.step()
    assert {name: uid for name, uid in pods(world).items() if name != TRIAL} == before
    world.change(image="delaymq/broker:2")
    world.run(lambda: world.status.get("image") == "delaymq/broker:2")
    world.run()
    after = pods(world)
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    assert world.failures == []


def test_kubectl_wait_returns_only_after_every_pod_is_replaced(world: ApiWorld) -> None:
    def is_done() -> bool:
        if not wait_returns(world.existing("Broker", "demo"), "Ready"):
            return False
        images = {
            pod["spec"]["containers"][0]["image"]
            for pod in (world.existing("Pod", name) for name in world.names("Pod"))
        }
        assert images == {"delaymq/broker:2"}, "kubectl wait returned while an old pod ran"
        return True

    world.change(image="delaymq/broker:2")
    world.run(is_done)
    assert kstatus(world.existing("Broker", "demo")) in ("Current", "InProgress")
    world.run()
    assert kstatus(world.existing("Broker", "demo")) == "Current"
    status = world.existing("StatefulSet", "demo-broker-0")["status"]
    assert status["currentRevision"] != status["updateRevision"], "of an OnDelete set it may count after all"


def test_upgraded_operator_restarts_nothing(world: ApiWorld) -> None:
    from dataclasses import replace

    before = pods(world)
    world.memory = type(world.memory)()
    world.settings = replace(world.settings, default_image="delaymq/broker:9")
    world.run(lambda: world.reason("UpToDate") == "OperatorNewer")
    world.run()
    assert pods(world) == before


def test_volume_grows_without_pod_restart(world: ApiWorld) -> None:
    before, old = pods(world), world.uid("StatefulSet", "demo-broker-0")
    world.change(storage={"size": "20Gi"})
    world.run(lambda: world.uid("StatefulSet", "demo-broker-0") not in ("", old))
    world.run()
    assert pods(world) == before
    new = world.existing("StatefulSet", "demo-broker-0")
    assert new["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "20Gi"
    assert world.existing("Pod", "demo-broker-0-0")["metadata"]["ownerReferences"][0]["uid"] == new["metadata"]["uid"]
    assert world.status["groups"][0]["storage"] == {"requested": "20Gi", "capacity": "20Gi"}
    assert world.calls.count(("delete", "Pod")) == 0


def test_volume_owned_by_stateful_set_grows_without_pod_restart(world: ApiWorld) -> None:
    world.change(storage={"deleteClaim": True})
    world.run()
    world.run(lambda: bool(world.existing("PersistentVolumeClaim", CLAIM)["metadata"].get("ownerReferences")))
    before = pods(world)
    world.change(storage={"size": "20Gi"})
    world.run(lambda: world.status["groups"][0]["storage"]["capacity"] == "20Gi")
    world.run()
    assert pods(world) == before
    assert "deletionTimestamp" not in world.existing("PersistentVolumeClaim", CLAIM)["metadata"]


def test_storage_class_without_expansion_is_reported(
    api_server_with_controllers: ApiServer, controlled_namespace: str, storage_classes: None
) -> None:
    with ApiWorld(api_server_with_controllers, controlled_namespace) as world:
        world.create(storage={"size": "10Gi", "storageClassName": "fixed"})
        world.run()
        before = pods(world)
        world.change(storage={"size": "20Gi"})
        world.run(lambda: world.reason("Degraded") == "VolumeCannotGrow")
        assert pods(world) == before
        assert "resize" in world.condition("Degraded")["message"]


def test_unreachable_size_can_be_reverted_but_not_below_volume(world: ApiWorld) -> None:
    world.mirror.largest = "10Gi"
    before = pods(world)
    world.change(storage={"size": "900Ti"})
    world.run(lambda: world.reason("Progressing") == "GrowingVolumes")
    world.run(lambda: requests_of(world) == ("900Ti", "900Ti"))
    with pytest.raises(ApiError, match="a volume cannot shrink to 9Gi: the smallest volume of this Broker has 10Gi"):
        world.change(storage={"size": "9Gi"})
    world.change(storage={"size": "10Gi"})
    world.run(lambda: requests_of(world) == ("10241Mi", "10Gi"))
    world.run()
    assert pods(world) == before
    with pytest.raises(ApiError, match="the storage class of bound volumes cannot change"):
        world.change(storage={"storageClassName": "fixed"})


def requests_of(world: ApiWorld) -> tuple[str, ...]:
    """Return the sizes that the claim and the StatefulSet request."""
    claim = world.existing("PersistentVolumeClaim", CLAIM)
    made = world.get("StatefulSet", "demo-broker-0")
    specs = [claim["spec"], made["spec"]["volumeClaimTemplates"][0]["spec"] if made else None]
    return tuple(spec["resources"]["requests"]["storage"] if spec else "" for spec in specs)


@pytest.mark.parametrize("delete_claim", [False, True])
def test_missing_storage_class_is_reported_and_can_be_corrected(
    api_server_with_controllers: ApiServer, controlled_namespace: str, storage_classes: None, delete_claim: bool
) -> None:
    with ApiWorld(api_server_with_controllers, controlled_namespace) as world:
        world.mirror.missing_classes.add("fsat")
        world.create(storage={"storageClassName": "fsat", "deleteClaim": delete_claim})
        world.run(lambda: world.get("PersistentVolumeClaim", CLAIM) is not None)
        warn_of_missing_class(world)
        world.run(lambda: world.reason("Degraded") == "VolumeNotBound")
        message = world.condition("Degraded")["message"]
        assert 'storage class fsat: ProvisioningFailed: storageclass.storage.k8s.io "fsat" not found' in message
        old = world.uid("PersistentVolumeClaim", CLAIM)
        world.change(storage={"storageClassName": "grows"})
        world.run()
        claim = world.existing("PersistentVolumeClaim", CLAIM)
        assert claim["metadata"]["uid"] != old
        assert claim["spec"]["storageClassName"] == "grows"
        assert world.status["volumes"] == {"smallest": "10Gi", "storageClassName": "grows"}
        assert world.failures == []


def warn_of_missing_class(world: ApiWorld) -> None:
    """Create the Event of the volume controller, which does not run here."""
    metadata = world.existing("PersistentVolumeClaim", CLAIM)["metadata"]
    about = {"kind": "PersistentVolumeClaim", "namespace": world.namespace, "name": CLAIM, "uid": metadata["uid"]}
    event = {
        "metadata": {"name": "missing-class", "namespace": world.namespace},
        "type": "Warning",
        "reason": "ProvisioningFailed",
        "message": 'storageclass.storage.k8s.io "fsat" not found',
        "involvedObject": about,
        "lastTimestamp": metadata["creationTimestamp"],
    }
    world.server.create(f"/api/v1/namespaces/{world.namespace}/events", event)


def test_drift_is_repaired_and_foreign_fields_are_kept(world: ApiWorld) -> None:
    world.merge("Service", "demo-namesrv", {"metadata": {"annotations": {"theirs": "1"}, "labels": {"theirs": "2"}}})
    world.merge("StatefulSet", "demo-broker-0", {"spec": {"updateStrategy": {"type": "RollingUpdate"}}})
    world.merge("PodDisruptionBudget", "demo-broker", {"spec": {"maxUnavailable": 5}})
    world.delete("ConfigMap", "demo-broker-conf")
    before = pods(world)
    world.run(lambda: world.get("ConfigMap", "demo-broker-conf") is not None)
    world.run()
    assert world.existing("StatefulSet", "demo-broker-0")["spec"]["updateStrategy"]["type"] == "OnDelete"
    assert world.existing("PodDisruptionBudget", "demo-broker")["spec"]["maxUnavailable"] == 1
    service = world.existing("Service", "demo-namesrv")
    assert service["metadata"]["annotations"]["theirs"] == "1"
    assert service["metadata"]["labels"]["theirs"] == "2"
    assert pods(world) == before


def test_field_removed_from_spec_is_removed_from_objects(world: ApiWorld) -> None:
    world.change(podTemplate={"nodeSelector": {"disk": "ssd"}}, networkPolicy={"enabled": True})
    world.run(lambda: world.names("NetworkPolicy") == ["demo-broker", "demo-namesrv"])
    world.run()
    pod_spec = world.existing("StatefulSet", "demo-broker-0")["spec"]["template"]["spec"]
    assert pod_spec["nodeSelector"] == {"disk": "ssd"}
    world.change(podTemplate=None, networkPolicy=None)
    world.run(lambda: world.names("NetworkPolicy") == [])
    world.run()
    assert "nodeSelector" not in world.existing("StatefulSet", "demo-broker-0")["spec"]["template"]["spec"]
    assert "nodeSelector" not in world.existing("Pod", "demo-broker-0-0")["spec"]


def test_service_address_is_restored_unless_taken(world: ApiWorld) -> None:
    address = world.existing("Service", "demo-broker-0")["spec"]["clusterIP"]
    before = pods(world)
    world.delete("Service", "demo-broker-0")
    world.run(lambda: world.get("Service", "demo-broker-0") is not None)
    world.run()
    assert world.existing("Service", "demo-broker-0")["spec"]["clusterIP"] == address
    assert pods(world) == before
    world.delete("Service", "demo-broker-0")
    thief = {"metadata": {"name": "thief"}, "spec": {"clusterIP": address, "ports": [{"port": 1}]}}
    world.server.create(world.path("Service"), thief)
    world.run(lambda: world.get("Service", "demo-broker-0") is not None)
    world.run(lambda: pods(world).get("demo-broker-0-0") not in (None, before["demo-broker-0-0"]))
    world.run()
    assert world.existing("Service", "demo-broker-0")["spec"]["clusterIP"] != address
    assert world.failures == []


def test_occupied_node_port_is_reported(world: ApiWorld) -> None:
    spec = {"type": "NodePort", "ports": [{"port": 1, "nodePort": 30911}]}
    world.server.create(world.path("Service"), {"metadata": {"name": "thief"}, "spec": spec})
    world.change(external={"type": "NodePort", "advertisedAddress": "192.0.2.1"})
    world.run(lambda: world.reason("Degraded") == "NodePortTaken")
    world.delete("Service", "thief")
    world.run(lambda: world.get("Service", "demo-broker-0-external") is not None)
    world.run()
    assert world.status["groups"][0]["address"] == "192.0.2.1:30911"
    assert world.status["externalNameServers"] == ["192.0.2.1:30976"]
    world.delete("Broker", "demo")
    world.run(lambda: "demo-broker-0-external" not in world.names("Service"))


def test_load_balancer_provides_address(world: ApiWorld) -> None:
    world.change(external={"type": "LoadBalancer"})
    world.run(lambda: world.reason("Degraded") == "AddressPending")
    ingress = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}}}
    world.merge("Service", "demo-broker-0-external", ingress, "status")
    world.run(lambda: world.status["groups"][0].get("address") == "192.0.2.9:10911")
    world.run()


def test_objects_are_deleted_with_broker_and_volumes_are_reused(world: ApiWorld) -> None:
    address = world.existing("Service", "demo-broker-0")["spec"]["clusterIP"]
    claim = world.uid("PersistentVolumeClaim", CLAIM)
    world.delete("Broker", "demo")
    kinds = ("StatefulSet", "Pod", "Service", "Secret", "PodDisruptionBudget")
    world.run(lambda: not [name for kind in kinds for name in world.names(kind)])
    assert world.names("PersistentVolumeClaim") == [CLAIM]
    world.create(storage={"size": "10Gi", "storageClassName": "grows"})
    world.run()
    assert world.uid("PersistentVolumeClaim", CLAIM) == claim
    assert world.existing("Service", "demo-broker-0")["spec"]["clusterIP"] == address


def test_recreated_broker_waits_for_deletion_of_former_one(world: ApiWorld) -> None:
    world.delete("Broker", "demo")
    world.create(storage={"size": "10Gi", "storageClassName": "grows"})
    world.run()
    owner = world.uid("Broker", "demo")
    assert world.existing("Secret", "demo-http-token")["metadata"]["ownerReferences"][0]["uid"] == owner
    assert world.reason("Degraded") == "AsExpected"


@pytest.mark.parametrize("delete_claim", [False, True])
def test_group_and_volume_are_removed_as_specified(world: ApiWorld, delete_claim: bool) -> None:
    world.change(size=2, storage={"deleteClaim": delete_claim})
    world.run(lambda: world.status.get("readyGroups") == 2)
    world.run()
    world.change(size=1)
    kept = ["store-demo-broker-0-0"] if delete_claim else ["store-demo-broker-0-0", "store-demo-broker-1-0"]
    world.run(lambda: "demo-broker-1" not in world.names("Service"))
    world.run(lambda: world.names("PersistentVolumeClaim") == kept)
    world.run()
    assert world.status["size"] == 1
    assert world.names("StatefulSet") == ["demo-broker-0", "demo-namesrv"]


def test_quota_that_prevents_pod_creation_is_reported(
    api_server_with_controllers: ApiServer, controlled_namespace: str
) -> None:
    server, quotas = api_server_with_controllers, f"/api/v1/namespaces/{controlled_namespace}/resourcequotas"
    hard = {"pods": "0"}
    server.create(quotas, {"metadata": {"name": "none"}, "spec": {"hard": hard}})
    # Set the status that the quota controller, which does not run here, would compute.
    server.merge(f"{quotas}/none/status", {"status": {"hard": hard, "used": hard}})
    with ApiWorld(server, controlled_namespace) as world:
        world.create()
        world.run(lambda: world.reason("Degraded") == "PodFailing")
        assert "exceeded quota: none" in world.condition("Degraded")["message"]
        assert world.failures == []


def test_foreign_object_is_not_adopted(api_server_with_controllers: ApiServer, controlled_namespace: str) -> None:
    with ApiWorld(api_server_with_controllers, controlled_namespace) as world:
        theirs = {"metadata": {"name": "demo-broker-conf"}, "data": {"theirs": "1"}}
        world.server.create(world.path("ConfigMap"), theirs)
        world.create()
        world.run(lambda: world.reason("Degraded") == "NameConflict")
        assert world.existing("ConfigMap", "demo-broker-conf")["data"] == {"theirs": "1"}
