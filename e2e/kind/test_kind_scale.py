"""Scaling out and in: topics follow, and no group is removed while it holds pending messages."""

import time
from collections.abc import Callable

import pytest
from kind import objects
from kind.space import Space, condition
from kind.waiting import stays, wait_until

pytestmark = pytest.mark.timeout(300)

BROKER = "broker.delaymq.io"
SURPLUS_POD = "demo-broker-1-0"


def test_broker_scales_out_by_a_group_and_removes_it_only_when_it_is_empty(
    spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    space = spare()
    name_servers = space.name_servers()
    # Long enough to observe that removal is blocked, short enough to observe its end.
    space.apply(objects.levels("held", "15s"))
    space.patch(BROKER, "demo", {"spec": {"delayLevelConfigRef": {"name": "held"}}})
    space.wait_condition("delaylevelconfig.delaymq.io", "held", "Ready", reason="Applied")
    first_uid = space.pod("demo-broker-0-0")["metadata"]["uid"]

    began = time.monotonic()
    space.kubectl("scale", BROKER, "demo", "--replicas=2")
    space.wait_broker_ready()
    out_s = time.monotonic() - began
    wait_until(
        "the Topic is in the new group",
        lambda: len(space.get("topic.delaymq.io", "orders")["status"]["groups"]) == 2, timeout_s=30,
    )  # fmt: skip
    route = space.client.ask("route", "orders", name_servers=name_servers)
    assert sorted({broker for broker, _ in route["writable"]}) == ["demo-0", "demo-1"]

    # Both groups have a consumer and pending messages.
    consumer = space.client.consume(topic="orders", group="readers", name_servers=name_servers, at_most_s=240)
    producer = space.client.produce(
        topic="orders", name_servers=name_servers, run="scale", count=200, rate=200, levels=1
    )
    producer.result()
    assert {send.broker for send in producer.sends()} == {"demo-0", "demo-1"}
    space.kubectl("scale", BROKER, "demo", "--replicas=1")
    blocked = space.wait_condition(BROKER, "demo", "ScaleInBlocked", status="True")
    assert "demo-1" in blocked["message"], blocked["message"]
    # In the meantime it accepts no more messages, and is kept.
    wait_until(
        "the surplus group is read-only for clients",
        lambda: {broker for broker, _ in space.client.ask("route", "orders", name_servers=name_servers)["writable"]}
        == {"demo-0"},
        timeout_s=30, every_s=1,
    )  # fmt: skip
    stays(
        "the surplus group runs while it has pending messages",
        lambda: space.find("pod", SURPLUS_POD),
        for_s=5,
        every_s=1,
    )
    # Reconciliation is paused: the log must be read before the group is removed.
    space.patch(BROKER, "demo", {"spec": {"paused": True}})
    verdict = space.judge_when_done("orders", producer.sends(), groups=2, timeout_s=60)
    space.patch(BROKER, "demo", {"spec": {"paused": False}})
    verdict.assert_clean()
    began = time.monotonic()
    wait_until("the empty group is removed", lambda: space.find("pod", SURPLUS_POD) is None, timeout_s=90, every_s=1)
    in_s = time.monotonic() - began
    broker = space.wait_broker_ready()
    assert not condition(broker, "ScaleInBlocked") or condition(broker, "ScaleInBlocked")["status"] == "False"
    consumer.wait_lines("got", 200)
    consumer.stop()
    assert {line[0] for line in consumer.lines("got")} == {send.key for send in producer.sends()}
    assert space.pod("demo-broker-0-0")["metadata"]["uid"] == first_uid
    # Its volume is kept, since it may contain unconsumed messages.
    assert space.find("pvc", f"store-{SURPLUS_POD}")
    brokers = space.client.ask("brokers", name_servers=name_servers)
    assert list(brokers) == ["demo-0"], brokers
    note(scale_out_s=out_s, removed_after_last_message_s=in_s, blocked=blocked["message"], **verdict.figures())


def test_annotation_forces_removal_of_a_group_with_its_messages(
    spaces: Callable[..., Space], note: Callable[..., None]
) -> None:
    space = spaces("force")
    space.apply(objects.topic("orders", queues=2))
    name_servers = space.broker_ready(size=2)
    space.wait_condition("topic.delaymq.io", "orders", "Ready", reason="InEveryGroup")
    space.client.produce(
        topic="orders", name_servers=name_servers, run="force", count=40, rate=200, levels=objects.LEVEL_OF["1h"]
    ).result()
    space.kubectl("scale", BROKER, "demo", "--replicas=1")
    space.wait_condition(BROKER, "demo", "ScaleInBlocked", status="True")
    # The annotation names the intended size, so a forgotten one has no effect later.
    space.annotate(BROKER, "demo", "delaymq.io/force-scale-in=2")
    stays("an annotation with another size has no effect", lambda: space.find("pod", SURPLUS_POD), for_s=3, every_s=1)
    began = time.monotonic()
    space.annotate(BROKER, "demo", "delaymq.io/force-scale-in=1")
    wait_until("the group is removed", lambda: space.find("pod", SURPLUS_POD) is None, timeout_s=90, every_s=0.5)
    note(removed_after_s=time.monotonic() - began)
    # Its volume is kept, so scaling out again restores its messages.
    space.kubectl("scale", BROKER, "demo", "--replicas=2")
    space.wait_broker_ready()
    levels = space.http(SURPLUS_POD, "/api/v1/delay")["levels"]
    assert sum(each["pending"] for each in levels) == 20
