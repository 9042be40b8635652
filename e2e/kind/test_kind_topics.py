"""Topics as resources: created in every group, changed, limited, in conflict, deleted or kept, without a Broker."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from kind import objects
from kind.space import Space
from kind.waiting import NotYetError, wait_until

pytestmark = pytest.mark.timeout(240)

TOPIC = "topic.delaymq.io"
POD = "demo-broker-0-0"


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


def test_topic_limits_delayed_messages_and_is_kept_while_some_are_pending(
    spaces: Callable[..., Space], note: Callable[..., None]
) -> None:
    space = spaces("limited")
    objective = {"withinMilliseconds": 5_000, "percent": 99.9}
    limited: dict[str, Any] = {"queues": 2, "deletionPolicy": "RefuseWhilePending"}
    space.apply(objects.topic("orders", delay={"maxPendingMessages": 5, "latenessObjective": objective}, **limited))
    name_servers = space.broker_ready()
    space.wait_condition(TOPIC, "orders", "Ready", reason="InEveryGroup")
    settings = space.http(POD, "/api/v1/delay/settings/topics/orders")["settings"]
    assert settings == {"maxPendingMessages": 5, "latenessObjective": {"withinMs": 5_000, "percent": 99.9}}
    producer = space.client.produce(
        topic="orders", name_servers=name_servers, run="later", count=8, rate=20, delay="1h", retries=0
    )
    producer.result()
    assert space.http(POD, "/api/v1/delay/settings/topics/orders")["pending"] == 5

    def shown() -> Any:
        delay = space.get(TOPIC, "orders")["status"].get("delay", {})
        if delay.get("pendingMessages") == 5 and delay.get("nextDueTime"):
            return delay
        raise NotYetError(str(delay))

    figures = wait_until("the status shows the pending messages", shown, timeout_s=120)
    # The limit is removed, and the deletion waits for the messages.
    space.apply(objects.topic("orders", delay={}, **limited))
    space.wait_condition(TOPIC, "orders", "Ready", reason="InEveryGroup")
    wait_until("the limit is removed", lambda: not _settings(space), timeout_s=30)
    space.kubectl("delete", TOPIC, "orders", "--wait=false")
    waiting = space.wait_condition(TOPIC, "orders", "Ready", reason="Deleting")
    assert "5 delayed messages are pending until" in waiting["message"], waiting["message"]
    assert space.client.ask("route", "orders", name_servers=name_servers)
    space.patch(TOPIC, "orders", {"spec": {"deletionPolicy": "Delete"}})
    wait_until("the Topic is gone", lambda: space.find(TOPIC, "orders") is None, timeout_s=60)
    note(figures=figures, waiting=waiting["message"])


def _settings(space: Space) -> Any:
    return space.http(POD, "/api/v1/delay/settings/topics/orders")["settings"]
