"""Scale-in: surplus groups are drained and removed."""

from typing import Any, NoReturn

import pytest
from delaymq.api_types.broker import DrainMode
from delaymq_operator.reconcile.context import ReconcileSettings
from delaymq_operator.reconcile.errors import BrokerRefused
from delaymq_operator.reconcile.ports import Endpoint, Manifest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld

CLAIM = "store-demo-broker-1-0"


@pytest.fixture
def world() -> FakeWorld:
    return settled(size=2)


def settled(**spec: Any) -> FakeWorld:
    found = FakeWorld()
    found.create(**spec)
    found.run()
    found.brokers.calls.clear()
    return found


def gone(world: FakeWorld, group: int = 1) -> bool:
    return not [
        name
        for kind in ("StatefulSet", "Pod", "Service")
        for name in world.names(kind)
        if f"demo-broker-{group}" in name
    ]


def test_empty_group_is_removed_after_writes_are_withdrawn(world: FakeWorld) -> None:
    world.change(size=1)
    world.run(lambda: gone(world))
    world.run()
    assert world.brokers.calls == [
        ("withdraw", "demo-broker-1-0"),
        ("refuse", "demo-broker-1-0"),
        ("decommission", "demo-broker-1-0"),
    ]
    assert world.status["size"] == 1
    assert [group["name"] for group in world.status["groups"]] == ["demo-0"]
    assert world.condition("ScaleInBlocked") == {}
    assert world.get("PersistentVolumeClaim", CLAIM) is not None


def test_volume_is_deleted_with_group_if_specified() -> None:
    world = settled(size=2, storage={"deleteClaim": True})
    world.change(size=1)
    world.run(lambda: gone(world) and world.get("PersistentVolumeClaim", CLAIM) is None)


def test_volume_is_kept_if_delete_claim_is_reset_during_removal() -> None:
    world = settled(size=2, storage={"deleteClaim": True})
    world.brokers.stores[CLAIM].pending = 3
    world.change(size=1)
    world.idle(60)
    before = world.pod_uids()
    world.change(storage={"deleteClaim": False})
    world.annotate(force_scale_in="1")
    world.run(lambda: gone(world))
    assert world.get("PersistentVolumeClaim", CLAIM) is not None
    assert world.pod_uids()["demo-broker-0-0"] == before["demo-broker-0-0"]


def test_group_is_not_removed_before_its_volume_is_released() -> None:
    world = settled(size=2, storage={"deleteClaim": True})
    world.change(size=1, storage={"deleteClaim": False})
    owner = {"uid": world.existing("StatefulSet", "demo-broker-1")["metadata"]["uid"]}

    def held() -> None:
        world.kube.objects["PersistentVolumeClaim", NAMESPACE, CLAIM]["metadata"]["ownerReferences"] = [owner]
        world.cache.sync()

    world.watch = held
    world.idle(60)
    assert world.get("StatefulSet", "demo-broker-1") is not None
    world.watch = lambda: None
    world.idle(60)
    assert gone(world)
    assert world.get("PersistentVolumeClaim", CLAIM) is not None


def test_recently_reverted_override_removes_nothing(world: FakeWorld) -> None:
    world.brokers.stores[CLAIM].pending = 3
    world.annotate(force_scale_in="1")
    world.change(size=1)
    world.cache.sync()
    world.annotate(force_scale_in="no")
    world.reconcile()
    assert not gone(world)
    assert world.brokers.calls.count(("decommission", "demo-broker-1-0")) == 0


@pytest.mark.parametrize(
    ("left", "words"),
    [({"pending": 3}, "3 delayed messages"), ({"unconsumed": 7}, "7 of topic orders by group workers")],
    ids=["delayed", "unconsumed"],
)
def test_group_is_kept_while_it_contains_messages(world: FakeWorld, left: Manifest, words: str) -> None:
    store = world.brokers.stores[CLAIM]
    for name, value in left.items():
        setattr(store, name, value)
    world.change(size=1)
    world.idle(200)
    assert not gone(world)
    blocked = world.condition("ScaleInBlocked")
    assert blocked["status"] == "True"
    assert words in blocked["message"]
    assert "demo-1" in blocked["message"]
    assert 'delaymq.io/force-scale-in="1"' in blocked["message"]
    assert world.reason("Progressing") == "ScalingIn"
    assert world.brokers.running["demo-broker-1-0"].drain.mode == "refuse"
    store.pending = store.unconsumed = 0
    world.run(lambda: gone(world))
    world.run()
    assert world.condition("ScaleInBlocked") == {}


def test_annotation_forces_removal_of_group_with_messages(world: FakeWorld) -> None:
    world.brokers.stores[CLAIM].pending = 3
    world.change(size=1)
    world.idle(30)
    assert not gone(world)
    world.annotate(force_scale_in="1")
    world.run(lambda: gone(world))
    assert ("decommission", "demo-broker-1-0") in world.brokers.calls


def test_group_with_unreachable_broker_is_kept_until_forced(world: FakeWorld) -> None:
    world.brokers.mute.add("demo-broker-1-0")
    world.change(size=1)
    world.idle(60)
    assert not gone(world)
    assert "no response within 5 s" in world.condition("ScaleInBlocked")["message"]
    world.annotate(force_scale_in="1")
    world.run(lambda: gone(world))


def test_group_that_rejects_drain_is_kept_and_reported(world: FakeWorld) -> None:
    async def refuse(endpoint: Endpoint, mode: DrainMode, lease_ms: int) -> NoReturn:
        raise BrokerRefused(endpoint.host, "not_found", "there is no /api/v1/drain")

    world.brokers.drain = refuse
    world.change(size=1)
    world.idle(60)
    assert not gone(world)
    assert "there is no /api/v1/drain" in world.condition("ScaleInBlocked")["message"]
    world.annotate(force_scale_in="1")
    world.run(lambda: gone(world))


def test_waiting_group_stays_read_only_despite_long_poll_interval() -> None:
    world = FakeWorld(settings=ReconcileSettings(default_image="i", poll_interval_s=100, drain_lease_s=60))
    world.create(size=2)
    world.run()
    world.brokers.stores[CLAIM].pending = 3
    world.change(size=1)
    world.run(lambda: world.condition("ScaleInBlocked") != {})
    world.watch = lambda: modes.add(world.brokers.running["demo-broker-1-0"].drain.mode)
    modes: set[str] = set()
    world.idle(300)
    assert modes == {"refuse"}


def test_cancelled_removal_restores_writes(world: FakeWorld) -> None:
    world.brokers.stores[CLAIM].pending = 3
    world.change(size=1)
    world.idle(60)
    uid = world.pod_uids()["demo-broker-1-0"]
    world.change(size=2)
    world.idle(1)
    world.run()
    assert world.pod_uids()["demo-broker-1-0"] == uid
    assert world.brokers.running["demo-broker-1-0"].drain.mode == "none"
    assert world.status["groups"][1]["writable"] is True


def test_decommissioned_group_is_restored_by_restart(world: FakeWorld) -> None:
    world.change(size=1)
    world.run(lambda: world.brokers.running["demo-broker-1-0"].decommissioned)
    world.change(size=2)
    world.idle(1)
    world.run()
    assert not world.brokers.running["demo-broker-1-0"].decommissioned
    assert world.status["readyGroups"] == 2


def test_groups_are_removed_from_highest_and_blocked_one_keeps_lower_ones() -> None:
    world = settled(size=4)
    world.brokers.stores["store-demo-broker-2-0"].pending = 1
    world.change(size=1)
    world.run(lambda: gone(world, 3))
    world.idle(30)
    assert not gone(world, 2)
    assert not gone(world, 1)
    assert world.brokers.running["demo-broker-1-0"].drain.mode == "withdraw"
    world.brokers.stores["store-demo-broker-2-0"].pending = 0
    world.run(lambda: gone(world, 1))
    world.run()
    assert world.status["size"] == 1


def test_group_keeps_writes_if_no_other_accepts_them(world: FakeWorld) -> None:
    world.kube.unready.add("demo-broker-0-0")
    pod = world.existing("Pod", "demo-broker-0-0")
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    world.change(size=1)
    world.idle(60)
    assert world.brokers.running["demo-broker-1-0"].drain.mode == "none"
    assert not gone(world)
    world.kube.unready.clear()
    world.run(lambda: gone(world))


def test_drain_expires_without_operator(world: FakeWorld) -> None:
    world.brokers.stores[CLAIM].pending = 3
    world.change(size=1)
    world.idle(30)
    for _ in range(int(world.settings.drain_lease_s) + 2):
        world.tick()
    assert world.brokers.running["demo-broker-1-0"].drain.mode == "none"


def test_nothing_is_removed_while_paused(world: FakeWorld) -> None:
    world.change(size=1, paused=True)
    world.idle(90)
    assert not gone(world)
    assert world.brokers.calls == []


def test_rollout_continues_during_blocked_scale_in(world: FakeWorld) -> None:
    world.brokers.stores[CLAIM].pending = 3
    world.change(size=1)
    world.idle(30)
    uids = world.pod_uids()
    world.change(flush="Sync")
    world.run(lambda: world.pod_uids().get("demo-broker-0-0") not in (None, uids["demo-broker-0-0"]))
    world.idle(60)
    assert world.pod_uids()["demo-broker-1-0"] == uids["demo-broker-1-0"]
    assert world.condition("ScaleInBlocked")["status"] == "True"


def test_cancelled_scale_in_missing_from_cache_removes_nothing(world: FakeWorld) -> None:
    world.change(size=1)
    world.run(lambda: ("refuse", "demo-broker-1-0") in world.brokers.calls)
    world.lag_ticks = 10_000
    world.change(size=2)
    for _ in range(60):
        world.now_ms += 1000
        world.brokers.tick()
        world.reconcile()
    assert not gone(world)
    assert world.kube.objects["StatefulSet", NAMESPACE, "demo-broker-1"]
