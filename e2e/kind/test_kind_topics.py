"""Topics as resources: created in every group, changed, in conflict, deleted or retained, and after their Broker."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from kind import objects
from kind.space import Space
from kind.waiting import NotYetError, wait_until

pytestmark = pytest.mark.timeout(240)

TOPIC = "topic.delaymq.io"


def test_topic_follows_the_life_cycle_of_its_resource(spaces: Callable[..., Space], note: Callable[..., None]) -> None:
    space = spaces("topics")
    space.apply(objects.topic("orders", queues=4), objects.topic("kept", queues=2, deletionPolicy="Retain"))
    name_servers = space.broker_ready()

    def route(topic: str) -> Any:
        return space.client.ask("route", topic, name_servers=name_servers)

    def queues(topic: str, read: int, write: int) -> None:
        def ask() -> bool:
            found = route(topic)
            counts = found and (len(found["readable"]), len(found["writable"]))
            if counts == (read, write):
                return True
            raise NotYetError(str(counts))

        wait_until(f"{topic} has {read} read queues and {write} write queues", ask, timeout_s=30)

    began = time.monotonic()
    for name in ("orders", "kept"):
        space.wait_condition(TOPIC, name, "Ready", reason="InEveryGroup")
    queues("orders", 4, 4)
    # More queues, then fewer: removed queues stay readable.
    space.apply(objects.topic("orders", queues=6))
    queues("orders", 6, 6)
    space.apply(objects.topic("orders", queues=3))
    queues("orders", 6, 3)
    state = space.wait_condition(TOPIC, "orders", "Ready", reason="InEveryGroup")
    assert "read" in state["message"], state["message"]
    space.apply(objects.topic("orders", queues=3, permission="ReadOnly"))
    queues("orders", 6, 0)
    # A second resource with the same topic name waits, and takes over when the first is deleted.
    space.apply(objects.topic("again", topicName="orders", queues=5))
    conflict = space.wait_condition(TOPIC, "again", "Ready", reason="Conflict")
    assert "orders" in conflict["message"], conflict["message"]
    assert space.condition(TOPIC, "orders", "Ready")["reason"] == "InEveryGroup"
    changed_s = time.monotonic() - began
    space.kubectl("delete", TOPIC, "kept", "--timeout=30s")
    assert route("kept"), "the topic of a Topic with Retain was deleted"
    space.kubectl("delete", TOPIC, "again", "orders", "--timeout=30s")
    wait_until("the topic is gone for clients", lambda: route("orders") is None, timeout_s=30)
    note(changes_s=changed_s, conflict=conflict["message"])


def test_topic_can_be_deleted_after_its_broker_and_volumes_are_deleted_on_request(
    spaces: Callable[..., Space], note: Callable[..., None]
) -> None:
    space = spaces("orphan", client=False)
    space.apply(objects.topic("orders"))
    missing = space.wait_condition(TOPIC, "orders", "Ready", reason="BrokerMissing")
    assert "demo" in missing["message"], missing["message"]
    space.apply_broker(storage={"size": "128Mi", "deleteClaim": True})
    space.wait_condition(TOPIC, "orders", "Ready", reason="InEveryGroup", timeout_s=90)
    claim = "store-demo-broker-0-0"
    assert space.get("pvc", claim)["status"]["phase"] == "Bound"
    space.kubectl("delete", "broker.delaymq.io", "demo", "--timeout=30s")
    space.wait_condition(TOPIC, "orders", "Ready", reason="BrokerMissing")
    began = time.monotonic()
    space.kubectl("delete", TOPIC, "orders", "--timeout=30s")
    note(gone_after_s=time.monotonic() - began)
    # As requested; without deleteClaim volumes stay (test_kind_storage.py).
    wait_until("the volume is gone with its Broker", lambda: space.find("pvc", claim) is None, timeout_s=60)
