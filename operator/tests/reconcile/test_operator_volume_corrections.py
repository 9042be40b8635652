"""Wrong sizes and storage classes: reported by name, correctable without loss of messages."""

from typing import Any, NoReturn

import pytest
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.worlds.settled import settled
from delaymq_operator_testing.worlds.stuck import warn

CLAIM = "store-demo-broker-0-0"
NOT_FOUND = 'storageclass.storage.k8s.io "fsat" not found'


def claim_of(world: FakeWorld) -> Manifest:
    return world.existing("PersistentVolumeClaim", CLAIM)


def size_of(claim: Manifest) -> str:
    size: str = claim["spec"]["resources"]["requests"]["storage"]
    return size


def template_of(world: FakeWorld) -> Manifest:
    return world.existing("StatefulSet", "demo-broker-0")["spec"]["volumeClaimTemplates"][0]


def patches(world: FakeWorld) -> int:
    return world.kube.requests.count(("patch", "PersistentVolumeClaim", CLAIM))


# Sizes.


def assert_nothing_is_written(world: FakeWorld) -> None:
    """Assert that twenty more seconds cause no writes."""
    world.kube.requests.clear()
    world.idle(20)
    assert world.kube.writes() == []


def test_rejected_size_can_be_reverted_as_message_suggests() -> None:
    world = settled(size=1)
    world.kube.can_grow = False
    world.change(storage={"size": "900Gi"})
    world.idle(20)
    assert world.reason("Degraded") == "VolumeCannotGrow"
    assert world.condition("Degraded")["message"].endswith("or set spec.storage.size back to 10Gi.")
    assert world.reason("Stalled") == "VolumeCannotGrow"
    assert world.status["volumes"] == {"smallest": "10Gi"}
    world.change(storage={"size": "10Gi"})
    world.idle(1)
    world.run()
    assert world.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize(
    ("size", "asked"), [("10Gi", "10241Mi"), ("20Gi", "20Gi"), ("15Gi", "15Gi")], ids=lambda amount: amount
)
def test_unreachable_size_can_be_reverted_without_pod_restart(size: str, asked: str) -> None:
    world = settled(size=1)
    world.kube.largest = "20Gi"
    before = world.pod_uids()
    world.change(storage={"size": "900Ti"})
    world.idle(10)
    assert size_of(claim_of(world)) == size_of(template_of(world)) == "900Ti"
    assert world.reason("Progressing") == "GrowingVolumes"
    assert world.status["volumes"] == {"smallest": "10Gi"}
    world.change(storage={"size": size})
    world.idle(1)
    world.run()
    assert size_of(template_of(world)) == size
    assert size_of(claim_of(world)) == asked
    assert world.pod_uids() == before
    assert_nothing_is_written(world)


def test_storage_that_cannot_grow_keeps_smallest_accepted_request() -> None:
    world = settled(size=1)
    world.kube.largest = "10Gi"
    world.change(storage={"size": "900Ti"})
    world.idle(10)
    world.change(storage={"size": "10Gi"})
    world.idle(1)
    world.run()
    assert size_of(claim_of(world)) == "10241Mi"
    assert world.status["groups"][0]["storage"] == {"requested": "10241Mi", "capacity": "10Gi"}
    assert_nothing_is_written(world)


def test_rejected_withdrawal_is_attempted_once_and_broker_settles() -> None:
    world = settled(size=1)
    world.kube.largest = "10Gi"
    world.change(storage={"size": "900Ti"})
    world.idle(10)

    def refuse(body: Manifest, before: Manifest) -> NoReturn:
        raise KubeError(422, "Invalid", "field can not be less than previous value")

    world.kube._admit_size = refuse
    world.kube.requests.clear()
    world.change(storage={"size": "10Gi"})
    world.idle(30)
    world.run()
    assert patches(world) == 1
    told = [message for _, reason, message in world.kube.events if reason == "GrowthNotWithdrawn"]
    assert told == [
        f"volume {CLAIM} of demo-0 still requests 900Ti and has 10Gi: field can not be less than previous value"
    ]


def test_growth_requested_by_another_client_is_kept() -> None:
    world = settled(size=1)
    world.kube.largest = "10Gi"
    claim_of(world)["spec"]["resources"]["requests"]["storage"] = "50Gi"
    world.kube.requests.clear()
    world.idle(20)
    assert size_of(claim_of(world)) == "50Gi"
    assert patches(world) == 0


def test_quickly_corrected_size_is_withdrawn() -> None:
    world = settled(size=1)
    world.kube.largest = "10Gi"
    world.change(storage={"size": "900Ti"})
    world.step()
    assert size_of(claim_of(world)) == "900Ti"
    world.change(storage={"size": "10Gi"})
    world.idle(1)
    world.run()
    assert size_of(claim_of(world)) == "10241Mi"
    assert size_of(template_of(world)) == "10Gi"


def test_infeasible_resize_is_reported() -> None:
    world = settled(size=1)
    world.kube.largest = "10Gi"
    world.change(storage={"size": "900Ti"})
    world.idle(3)
    claim_of(world)["status"]["allocatedResourceStatuses"] = {"storage": "ControllerResizeInfeasible"}
    world.idle(3)
    assert world.reason("Degraded") == "VolumeCannotGrow"
    assert "set spec.storage.size back to 10Gi" in world.condition("Degraded")["message"]
    assert world.condition("Progressing")["status"] == "False"


# Classes.


def without_class(name: str | None, **storage: Any) -> FakeWorld:
    """Return a Broker whose claim refers to a storage class that does not exist."""
    world = FakeWorld()
    world.kube.missing_classes.add(name)
    world.create(size=1, storage={} if name is None else {"storageClassName": name} | storage)
    world.idle(8)
    if name is not None:
        warn(world, "PersistentVolumeClaim", CLAIM, "ProvisioningFailed", NOT_FOUND)
    return world


@pytest.mark.parametrize("delete_claim", [False, True])
def test_missing_storage_class_is_reported_and_can_be_corrected(delete_claim: bool) -> None:
    world = without_class("fsat", deleteClaim=delete_claim)
    world.idle(20)
    assert world.reason("Degraded") == "VolumeNotBound"
    assert world.condition("Degraded")["message"].startswith(
        f"Volume {CLAIM} is not bound: storage class fsat: ProvisioningFailed: {NOT_FOUND}. Create the storage class "
        "or whatever else is missing, or correct spec.storage, whose class and size can be changed while no volume of "
        "the Broker is bound."
    )
    old = claim_of(world)["metadata"]["uid"]
    assert world.status["groups"][0]["storage"] == {"requested": "10Gi"}
    assert "volumes" not in world.status
    world.change(storage={"storageClassName": "fast", "deleteClaim": delete_claim})
    world.run()
    assert claim_of(world)["spec"]["storageClassName"] == template_of(world)["spec"]["storageClassName"] == "fast"
    assert claim_of(world)["metadata"]["uid"] != old
    assert "delaymq.io/unwanted" not in claim_of(world)["metadata"].get("annotations", {})
    assert world.condition("Degraded")["status"] == "False"
    assert world.kube.requests.count(("delete", "PersistentVolumeClaim", CLAIM)) == 1


def test_storage_class_created_later_needs_no_correction() -> None:
    world = without_class("fsat")
    world.idle(20)
    uid = claim_of(world)["metadata"]["uid"]
    world.kube.missing_classes.clear()
    world.run()
    assert claim_of(world)["metadata"]["uid"] == uid


def test_missing_default_class_is_reported_and_can_be_replaced() -> None:
    world = without_class(None)
    world.idle(20)
    assert world.reason("Degraded") == "VolumeNotBound"
    assert "it has no storage class, and the cluster has no default class" in world.condition("Degraded")["message"]
    world.change(storage={"storageClassName": "fast"})
    world.run()
    assert claim_of(world)["spec"]["storageClassName"] == "fast"


def test_class_can_be_removed_in_favour_of_default() -> None:
    world = without_class("fsat")
    world.change(storage={})
    world.run()
    assert "storageClassName" not in claim_of(world)["spec"]


def test_size_can_be_corrected_before_volume_exists() -> None:
    world = without_class("fsat", size="900Ti")
    world.kube.missing_classes.clear()
    world.kube.missing_classes.add("fsat")
    world.change(storage={"storageClassName": "fsat", "size": "20Gi"})
    world.idle(8)
    assert size_of(claim_of(world)) == "20Gi"
    world.kube.missing_classes.clear()
    world.run()
    assert world.failures == []


def test_claim_bound_at_last_moment_is_kept() -> None:
    world = without_class("fsat")
    world.change(storage={"storageClassName": "fast"})
    deleted = []
    delete = world.kube.delete

    async def bind_first(kind: str, namespace: str, name: str, **options: Any) -> None:
        if kind == "PersistentVolumeClaim":
            claim = claim_of(world)
            claim["spec"]["volumeName"] = "pv-1"
            claim["status"] = {"phase": "Bound", "capacity": {"storage": "10Gi"}}
            world.kube._touch(claim)
            deleted.append(name)
        await delete(kind, namespace, name, **options)

    world.kube.delete = bind_first
    world.run()
    assert deleted == [CLAIM]
    assert claim_of(world)["spec"]["volumeName"] == "pv-1"
    assert world.status["volumes"] == {"smallest": "10Gi", "storageClassName": "fsat"}


@pytest.mark.parametrize("status", [{"phase": "Bound"}, {"phase": "Lost"}, {"capacity": {"storage": "10Gi"}}])
def test_claim_that_has_or_had_volume_is_never_deleted(status: Manifest) -> None:
    world = settled(size=1)
    claim = world.kube.objects["PersistentVolumeClaim", NAMESPACE, CLAIM]
    claim["metadata"]["annotations"]["delaymq.io/unwanted"] = "true"
    claim["spec"]["storageClassName"] = "other"
    world.kube.stays_as_it_is = lambda claim, wanted: True
    claim["status"] = status
    world.change(storage={"storageClassName": "fast", "size": "10Gi"})
    world.idle(10)
    assert ("delete", "PersistentVolumeClaim", CLAIM) not in world.kube.requests


@pytest.mark.parametrize("after", [False, True], ids=["before it takes effect", "after it took effect"])
@pytest.mark.parametrize("step", ["patch ('PersistentVolumeClaim'", "delete ('StatefulSet'", "delete ('Persistent"])
def test_correction_completes_after_crash_at_any_step(step: str, after: bool) -> None:
    first = without_class("fsat")
    first.calls.clear()
    first.change(storage={})
    first.run()
    calls = next(number for number, label in enumerate(first.calls, 1) if label.startswith(step))
    world = without_class("fsat")
    world.calls.clear()
    world.dies_at, world.dies_after = calls, after
    world.change(storage={})
    world.run()
    assert world.deaths == 1
    assert "storageClassName" not in claim_of(world)["spec"]
    assert "storageClassName" not in template_of(world)["spec"]


def test_smallest_volume_of_all_groups_is_reported_as_lower_bound() -> None:
    world = settled(size=2, storage={"storageClassName": "fast"})
    claim = world.kube.objects["PersistentVolumeClaim", NAMESPACE, "store-demo-broker-1-0"]
    claim["spec"]["resources"]["requests"]["storage"] = "20Gi"
    world.idle(5)
    assert world.status["volumes"] == {"smallest": "10Gi", "storageClassName": "fast"}
    world.kube.largest = "1Gi"
    claim["status"]["capacity"]["storage"] = "100Gi"
    first = world.kube.objects["PersistentVolumeClaim", NAMESPACE, CLAIM]
    first["status"]["capacity"]["storage"] = "50Gi"
    first["spec"]["storageClassName"] = "slow"
    world.idle(5)
    assert world.status["volumes"] == {"smallest": "10Gi"}
