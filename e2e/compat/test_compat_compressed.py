"""Bodies compressed by RocketMQ's producer with each of its algorithms: stored and delivered unchanged."""

import json
import random
import subprocess
import sys
import urllib.request

import pytest
from compat.python_scenario import first_of, run
from delaymq.client import Client
from harness.brokers import Cluster, OurCluster
from harness.clients import Workbench
from harness.driver import Received

FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}
TEXT = "a sentence that is worth being compressed. " * 500
SHOWN_BYTES = 64 * 1024
COMMAND_LIMIT_S = 60.0
COMPRESSED = 0x1
TYPE_BITS = 0x700
TYPES = {"LZ4": 0x100, "ZSTD": 0x200, "ZLIB": 0x300}
by_each_type = pytest.mark.parametrize("kind", TYPES)


def assert_compressed(message: Received, kind: str) -> None:
    """Assert that the client decompressed the body according to its flags, and that the broker stored fewer bytes."""
    assert message.body.decode() == TEXT
    assert message.system_flag & COMPRESSED
    assert message.system_flag & TYPE_BITS == TYPES[kind]
    assert message.store_bytes < len(TEXT) // 2


@by_each_type
def test_compressed_body_is_unchanged_in_delivery_delay_retry_and_query(clients: Workbench, kind: str) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)
    producer = clients.new_producer(compressType=kind)
    consumer = clients.push(topic, group=group, failTimes=1, maxReconsumeTimes=1, **FIRST)
    sent = producer.send(topic, TEXT, keys="now")
    producer.send(topic, TEXT, keys="late", delayLevel=1)
    got = consumer.inbox.wait_count(4, timeout_s=60)
    assert sorted((m.keys, m.reconsume_times) for m in got) == [("late", 0), ("late", 1), ("now", 0), ("now", 1)]
    for message in got:
        assert_compressed(message, kind)
    assert_compressed(clients.admin.view(sent.offset_message_id), kind)
    (found,) = clients.admin.query(topic, "late")
    assert_compressed(found, kind)


@by_each_type
def test_python_client_decompresses_body(cluster: Cluster, clients: Workbench, kind: str) -> None:
    topic = clients.topic(queues=1)
    clients.new_producer(compressType=kind).send(topic, TEXT)

    async def scenario(client: Client) -> None:
        message = await first_of(client, topic)
        assert message.body.decode() == TEXT
        assert message.sys_flag & TYPE_BITS == TYPES[kind]

    run(cluster, scenario)


@pytest.mark.one_in(3)
@by_each_type
def test_command_line_and_http_show_decompressed_body(cluster: Cluster, clients: Workbench, kind: str) -> None:
    topic = clients.topic(queues=1)
    producer = clients.new_producer(compressType=kind)
    # The second is longer than the excerpt shown by HTTP, and LZ4 compresses it as one block.
    for text in (TEXT, random.Random(kind).randbytes(200_000).hex()):
        sent = producer.send(topic, text)
        words = ["message", "get", sent.offset_message_id, "--json", "--namesrv", cluster.namesrv_address]
        done = subprocess.run(
            [sys.executable, "-m", "delaymq", *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["body"] == text
        if isinstance(cluster, OurCluster):  # RocketMQ's broker has no HTTP
            url = f"http://{cluster.http_address}/api/v1/messages/{sent.offset_message_id}"
            with urllib.request.urlopen(url, timeout=COMMAND_LIMIT_S) as answer:
                body = json.load(answer)["body"]
            assert body["text"] == text[:SHOWN_BYTES]
            assert (body["truncated"], body["notUnpacked"]) == (len(text) > SHOWN_BYTES, None)


@by_each_type
def test_compressed_body_is_unchanged_in_dead_letter_topic(clients: Workbench, kind: str) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)
    clients.push(topic, group=group, failTimes=9, maxReconsumeTimes=0, **FIRST)
    clients.new_producer(compressType=kind).send(topic, TEXT)
    clients.wait_for_route(f"%DLQ%{group}")
    reader = clients.pull(group=clients.group())
    (dead,) = reader.pull(f"%DLQ%{group}", 0, 0, wait=True).messages
    assert_compressed(dead, kind)
