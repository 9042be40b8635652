"""RocketMQ's consumers wait while the broker cannot read the offsets, and keep their positions."""

import time
from collections.abc import Callable

import pytest
from harness.brokers import Cluster, OurCluster
from harness.clients import PushConsumer, Workbench

pytestmark = pytest.mark.ours_only

FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}
ASKED_LIMIT_S = 60.0
"""RocketMQ's client requests the offset of a queue that it could not add again every 20 s."""


def wait_asked_in_vain(clients: Workbench, topic: str) -> None:
    """Wait until a consumer has logged that the request for its offset failed."""
    deadline = time.monotonic() + ASKED_LIMIT_S
    while not any(
        "fetchConsumeOffsetFromBroker exception" in line and topic in line
        for path in clients.driver.home_path.rglob("rocketmq_client.log")
        for line in path.read_text(errors="replace").splitlines()
    ):
        assert time.monotonic() < deadline, "the consumer did not request its offset"
        time.sleep(0.1)


def consumer_that_waits(clients: Workbench, cluster: OurCluster, topic: str, group: str) -> PushConsumer:
    """Return a consumer that would start at the first message if its group were treated as new."""
    config = cluster.store_path / "config"
    cluster.stop()
    (config / "consumerOffset.json").replace(config / "consumerOffset.json.good")
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (config / name).write_bytes(b"{")
    cluster.start()
    consumer = clients.push(topic, group=group, **FIRST)
    clients.producer.send(topic, "during", queue_id=0)
    wait_asked_in_vain(clients, topic)
    assert consumer.inbox.messages() == []
    return consumer


def test_consumers_resume_at_their_offsets_when_the_offset_file_is_restored(
    new_workbench: Callable[[Cluster], Workbench], isolated_network: None
) -> None:
    with OurCluster(config={"flushConsumerOffsetInterval": "100"}) as cluster:
        clients = new_workbench(cluster)
        topic, group = clients.topic(queues=1), clients.group()
        before = clients.push(topic, group=group, **FIRST)
        for number in range(5):
            clients.producer.send(topic, f"before{number}", queue_id=0)
        before.inbox.wait_count(5)
        puller = clients.pull(group=group)
        deadline = time.monotonic() + ASKED_LIMIT_S
        while puller.committed(topic, 0) != 5:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        clients.stop(puller)
        clients.stop(before)

        consumer = consumer_that_waits(clients, cluster, topic, group)
        config = cluster.store_path / "config"
        cluster.stop()
        (config / "consumerOffset.json.good").replace(config / "consumerOffset.json")
        cluster.start()
        got = consumer.inbox.wait_count(1, timeout_s=ASKED_LIMIT_S)
        assert [message.body for message in got] == [b"during"]
