"""Limits of pulls: messages far behind, disabled groups, and brokers without long polling."""

import time
from collections.abc import Callable, Iterator

import pytest
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import ClientError

FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}
SHORT_MS = 700


@pytest.fixture(scope="module")
def bounded_cluster(new_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """Provide a broker that treats messages as not in memory, and on which pulls wait only for a short time."""
    settings = {"longPollingEnable": "false", "shortPollingTimeMills": str(SHORT_MS)}
    with new_cluster(accessMessageInMemoryMaxRatio="0", **settings) as cluster:
        yield cluster


@pytest.fixture
def bounded(bounded_cluster: Cluster, new_workbench: Callable[[Cluster], Workbench]) -> Workbench:
    return new_workbench(bounded_cluster)


def change_group(clients: Workbench, group: str, *words: str) -> None:
    clients.mqadmin("updateSubGroup", "-b", clients.broker_address, "-g", group, *words)


def test_pull_far_behind_the_end_returns_at_most_8_messages_or_64_kib(bounded: Workbench) -> None:
    topic = bounded.topic(queues=2)
    producer = bounded.new_producer(compressOver=8 << 20)
    for _ in range(12):
        producer.send(topic, 10, queue_id=0)
    for _ in range(4):
        producer.send(topic, 30_000, queue_id=1)
    consumer = bounded.pull(group=bounded.group())
    assert len(consumer.pull(topic, 0, 0, max_count=32).messages) == 8
    assert len(consumer.pull(topic, 1, 0, max_count=32).messages) == 2


def test_pull_waits_for_the_short_polling_time_without_long_polling(bounded: Workbench) -> None:
    topic = bounded.topic(queues=1)
    bounded.producer.send(topic, "one")
    consumer = bounded.pull(group=bounded.group(), suspendMs=20_000)
    begin_s = time.monotonic()
    pulled = consumer.pull(topic, 0, 1, wait=True)
    assert (pulled.status, pulled.next_begin_offset) == ("NO_NEW_MSG", 1)
    assert time.monotonic() - begin_s >= SHORT_MS / 1000 * 0.9


def test_disabled_group_is_rejected_until_enabled_again(clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    clients.producer.send(topic, "one")
    consumer = clients.pull(group=group)
    change_group(clients, group, "-s", "false")
    with pytest.raises(ClientError) as caught:
        consumer.pull(topic, 0, 0)
    assert caught.value.code == 16
    assert f"subscription group no permission, {group}" in caught.value.remark
    change_group(clients, group, "-s", "true")
    assert [m.body for m in consumer.pull(topic, 0, 0).messages] == [b"one"]


def test_group_without_permission_to_broadcast_receives_nothing_by_broadcasting(clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    change_group(clients, group, "-d", "false")
    refused = clients.push(topic, group=group, broadcasting=True, **FIRST)
    clients.producer.send(topic, "one")
    other = clients.push(topic, group=clients.group(), broadcasting=True, **FIRST)
    other.inbox.wait_count(1, timeout_s=60)
    time.sleep(1)
    assert refused.inbox.messages() == []
    clients.stop(refused)
    shared = clients.push(topic, group=group, **FIRST)
    assert [m.body for m in shared.inbox.wait_count(1, timeout_s=60)] == [b"one"]
