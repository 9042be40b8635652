"""External clients on the nodes' host: DelayMQ's Python client and RocketMQ's."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from crash.load import LoadProgram
from delaymq.client import Client, Message, Producer
from kind import objects
from kind.lab import Lab
from kind.space import Space, condition
from kind.verdict import Sent

pytestmark = pytest.mark.timeout(240)

NAME_SERVER_PORT = 30976
BROKER_PORT = 30911
BROKER = "broker.delaymq.io"


def test_external_clients_use_a_broker_through_node_ports(
    lab: Lab, spaces: Callable[..., Space], note: Callable[..., None], tmp_path: Path
) -> None:
    space = spaces("outside")
    address = lab.cluster.node_address(lab.workers[0])
    space.apply(objects.topic("orders", queues=4), objects.topic("java", queues=4))
    inside = space.broker_ready(
        size=2,
        external={
            "type": "NodePort", "advertisedAddress": address, "brokerNodePort": BROKER_PORT,
            "nameServerNodePort": NAME_SERVER_PORT,
        },
    )  # fmt: skip
    for topic in ("orders", "java"):
        space.wait_condition("topic.delaymq.io", topic, "Ready", reason="InEveryGroup")
    outside = f"{address}:{NAME_SERVER_PORT}"
    sends = asyncio.run(_send(outside, 40))
    assert {send.broker for send in sends} == {"demo-0", "demo-1"}
    with LoadProgram(tmp_path) as java:
        sent = java.call(
            "send", namesrv=outside, topic="java", count=40, levels="1", acks=tmp_path / "acks", at_most_seconds=30
        )
    assert sent["failed"] == 0, sent["errors"]
    by_java = [
        Sent(key=line.split()[1], level=1, began_ms=0, ended_ms=0)
        for line in (tmp_path / "acks").read_text().splitlines()
    ]
    verdict = space.judge_when_done("orders", sends, groups=2)
    verdict.assert_clean()
    space.judge_when_done("java", by_java, groups=2, by_unique_key=True).assert_clean()
    # Clients in the cluster receive the same address, and reach it.
    consumer = space.client.consume(topic="orders", group="inside", name_servers=inside, count=40, at_most_s=60)
    assert consumer.result()["messages"] == 40
    route = space.client.ask("route", "orders", name_servers=inside)
    note(addresses=route["addresses"], java_acknowledged=sent["acknowledged"], **verdict.figures())


def test_occupied_node_ports_and_missing_addresses_are_reported_in_a_condition(
    spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    space = spare()
    before = space.pod_uids()
    said = {}
    # A Service in the namespace already uses the port.
    taken = {"name": "other", "nodePort": 31911, "port": 80}
    space.apply(
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "other"},
            "spec": {"type": "NodePort", "ports": [taken]},
        }
    )  # fmt: skip
    external = {"type": "NodePort", "advertisedAddress": "198.51.100.7", "nameServerNodePort": 31976}
    space.patch(BROKER, "demo", {"spec": {"external": {**external, "brokerNodePort": 31911}}})
    said["taken"] = space.wait_condition(BROKER, "demo", "Degraded", reason="NodePortTaken")["message"]
    assert "31911" in said["taken"], said["taken"]
    # This cluster has no load balancer.
    space.patch(BROKER, "demo", {"spec": {"external": None}})
    space.patch(BROKER, "demo", {"spec": {"external": {"type": "LoadBalancer"}}})
    said["pending"] = space.wait_condition(BROKER, "demo", "Degraded", reason="AddressPending")["message"]
    assert space.pod_uids() == before, "pods were restarted for an address that does not exist"
    space.patch(BROKER, "demo", {"spec": {"external": None}})
    broker = space.wait_broker_ready()
    assert condition(broker, "Degraded")["status"] == "False"
    assert space.pod_uids() == before
    note(**said)


async def _send(name_servers: str, count: int) -> list[Sent]:
    sends = []
    async with Client(name_servers) as client, Producer(client) as producer:
        for number in range(count):
            key = f"outside-{number}"
            message = Message(topic="orders", body=key.encode(), keys=(key,), delay_level=1)
            result = await producer.send(message)
            sends.append(
                Sent(
                    key=key, level=1, began_ms=0, ended_ms=0, message_id=result.offset_message_id,
                    broker=result.queue.broker_name,
                )
            )  # fmt: skip
    return sends
