"""Java clients configured not to shorten header names (sendSmartMsg=false): codes 10 and 324."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from harness.brokers import Cluster
from harness.clients import Workbench, message
from harness.driver import JVM_OPTIONS, Driver

pytestmark = pytest.mark.core

PLAIN = "-Dorg.apache.rocketmq.client.sendSmartMsg=false"
REPLY_TIMEOUT_MS = 30_000


@pytest.fixture(scope="module")
def plain_clients(cluster: Cluster) -> Iterator[Workbench]:
    """Provide clients in a separate JVM, since the setting is read only once."""
    with Driver(jvm_options=[*JVM_OPTIONS, PLAIN]) as driver:
        addresses: dict[str, Any] = {
            "namesrv_address": cluster.namesrv_address,
            "broker_address": cluster.broker_address,
        }
        with closing(Workbench(driver, **addresses)) as clients:
            yield clients


def test_message_sent_with_full_header_names_arrives_as_it_was_sent(plain_clients: Workbench) -> None:
    clients = plain_clients
    topic = clients.topic(queues=2)
    consumer = clients.push(topic, group=clients.group())
    fields = {"tags": "TagA", "keys": "k1", "flag": 7, "properties": {"colour": "blue"}}
    sent = clients.producer.send(topic, "sync", queue_id=1, **fields)
    assert (sent.status, sent.queue_id, sent.queue_offset) == ("SEND_OK", 1, 0)
    clients.producer.send_async(topic, "async")
    clients.producer.send_oneway(topic, "oneway")
    clients.producer.send_batch([message(topic, "batch1"), message(topic, "batch2")])
    clients.producer.send(topic, "late", delayLevel=1)
    got = {each.body: each for each in consumer.inbox.wait_count(6, timeout_s=60.0)}
    assert set(got) == {b"sync", b"async", b"oneway", b"batch1", b"batch2", b"late"}
    first = got[b"sync"]
    assert (first.tags, first.keys, first.flag, first.properties["colour"]) == ("TagA", "k1", 7, "blue")
    assert first.message_id == sent.message_id


def test_reply_with_full_header_names_reaches_the_requester(plain_clients: Workbench) -> None:
    clients = plain_clients
    topic = clients.topic(queues=1)
    clients.replier(topic, group=clients.group(retry_topic=True))
    reply = clients.new_producer().request(topic, "plain?", timeout_ms=REPLY_TIMEOUT_MS)
    assert reply.body == b"re: plain?"
