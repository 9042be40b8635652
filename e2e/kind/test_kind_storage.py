"""Volumes: they grow while a Broker runs, and outlive it."""

import time
from collections.abc import Callable

import pytest
from kind import objects
from kind.space import Space
from kind.waiting import NotYetError, wait_until

pytestmark = pytest.mark.timeout(240)

BROKER = "broker.delaymq.io"
CLAIM = "store-demo-broker-0-0"


def test_volume_grows_while_messages_are_pending_and_no_pod_restarts(
    spaces: Callable[..., Space], note: Callable[..., None]
) -> None:
    space = spaces("grow")
    space.apply(objects.topic("orders", queues=2))
    name_servers = space.broker_ready(storage={"size": "128Mi", "storageClassName": "expandable"})
    space.wait_condition("topic.delaymq.io", "orders", "Ready", reason="InEveryGroup")
    before = space.pod_uids()
    set_uid = space.get("statefulset", "demo-broker-0")["metadata"]["uid"]
    producer = space.client.produce(
        topic="orders", name_servers=name_servers, run="grow", count=300, rate=300, levels=objects.LEVEL_OF["5s"]
    )
    producer.result()
    began = time.monotonic()
    space.apply_broker(storage={"size": "256Mi", "storageClassName": "expandable"})

    def grown() -> bool:
        claim = space.get("pvc", CLAIM)
        capacity = claim["status"]["capacity"]["storage"]
        if capacity == "256Mi":
            return True
        raise NotYetError(f"capacity {capacity}, {claim['status'].get('conditions')}")

    wait_until("the volume has its new size", grown, timeout_s=60)
    space.wait_broker_ready()
    grown_s = time.monotonic() - began
    template = space.get("statefulset", "demo-broker-0")
    assert template["metadata"]["uid"] != set_uid
    requested = template["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    assert requested == "256Mi"
    assert space.pod_uids() == before
    verdict = space.judge_when_done("orders", producer.sends())
    verdict.assert_clean()
    note(grown_s=grown_s, restarts=0, **verdict.figures())


def test_storage_class_that_cannot_expand_is_reported_in_a_condition(
    spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    space = spare()
    before = space.pod_uids()
    space.apply_broker(storage={"size": "256Mi"})
    state = space.wait_condition(BROKER, "demo", "Degraded", reason="VolumeCannotGrow")
    assert space.pod_uids() == before
    assert space.condition(BROKER, "demo", "Ready")["status"] == "True"
    note(sentence=state["message"])


def test_recreated_broker_finds_the_messages_of_the_deleted_one(
    spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    space = spare()
    name_servers = space.name_servers()
    producer = space.client.produce(
        topic="orders", name_servers=name_servers, run="again", count=500, rate=500,
        levels=f"{objects.LEVEL_OF['1s']},{objects.LEVEL_OF['10s']}",
    )  # fmt: skip
    producer.result()
    before = space.broker()["status"]["groups"][0]
    space.kubectl("delete", BROKER, "demo", "--timeout=60s")
    wait_until("its pods are gone", lambda: not space.pod_uids(), timeout_s=60)
    assert space.get("pvc", CLAIM)["status"]["phase"] == "Bound"
    assert not space.list("statefulsets")
    began = time.monotonic()
    space.apply_broker()
    space.wait_broker_ready()
    back_s = time.monotonic() - began
    group = space.broker()["status"]["groups"][0]
    assert group["storeId"] == before["storeId"]
    # Its address is unchanged, so the ids returned to producers are still valid.
    assert group["address"] == before["address"]
    first = next(send for send in producer.sends() if not send.failure)
    assert space.client.ask("view", first.message_id, name_servers=name_servers)["keys"] == [first.key]
    verdict = space.judge_when_done("orders", producer.sends(), timeout_s=60)
    verdict.assert_clean()
    note(back_s=back_s, **verdict.figures())
