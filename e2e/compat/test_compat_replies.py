"""Requests and replies between RocketMQ's Java client and DelayMQ's Python client, in all four combinations, on
either broker.
"""

import asyncio
import time
from typing import Any

import pytest
from compat.python_scenario import FROM_FIRST, new_name, run, until
from delaymq.client import (
    Client,
    Message,
    NoReplyError,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendError,
    SendResult,
    reply_to,
)
from harness.brokers import Cluster
from harness.clients import Replier, Workbench
from harness.driver import ClientError

REPLY_TIMEOUT_MS = 30_000
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
LIMIT_S = 60.0


def test_java_producer_receives_reply_of_a_java_consumer(cluster: Cluster, clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    replier = clients.replier(topic, group=clients.group(retry_topic=True))
    producer = clients.new_producer()
    reply = producer.request(topic, "what?", timeout_ms=REPLY_TIMEOUT_MS, keys="k")
    assert reply.body == b"re: what?"
    assert reply.topic == REPLY_TOPIC
    (asked,) = replier.inbox.messages()
    assert asked.properties["REPLY_TO_CLIENT"] == producer.client_id == reply.properties["REPLY_TO_CLIENT"]
    assert asked.properties["CORRELATION_ID"] == reply.properties["CORRELATION_ID"]
    assert asked.properties["TTL"] == str(REPLY_TIMEOUT_MS)
    assert int(reply.properties["PUSH_REPLY_TIME"]) > 0
    assert producer.request(topic, "and?", timeout_ms=REPLY_TIMEOUT_MS, callback=True).body == b"re: and?"


def test_reply_is_stored_in_the_reply_topic(cluster: Cluster, clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    replier = clients.replier(topic, group=clients.group(retry_topic=True))
    clients.new_producer().request(topic, "kept?", timeout_ms=REPLY_TIMEOUT_MS)
    (outcome,) = _outcomes(replier)
    assert outcome["status"] == "SEND_OK"
    kept = clients.admin.view(outcome["offsetMsgId"])
    assert (kept.topic, kept.queue_offset, kept.body) == (REPLY_TOPIC, outcome["queueOffset"], b"re: kept?")
    assert kept.properties["MSG_TYPE"] == "reply"
    assert "PUSH_REPLY_TIME" not in kept.properties


def test_java_replier_is_informed_that_the_producer_is_gone(cluster: Cluster, clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.new_producer()
    with pytest.raises(ClientError, match="timeout"):
        producer.request(topic, "nobody is there", timeout_ms=300)
    gone = producer.client_id
    clients.stop(producer)
    replier = clients.replier(topic, group=clients.group(retry_topic=True))
    assert f"push reply message fail, channel of <{gone}> not found." in _outcomes(replier)[0]["error"]


def test_python_producer_receives_reply_of_a_java_consumer(cluster: Cluster, clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    replier = clients.replier(topic, group=clients.group(retry_topic=True), count=2)

    async def scenario(client: Client) -> None:
        async with Producer(client, new_name("Askers")) as producer:
            many = [Message(topic=topic, body=b"%d" % number) for number in range(20)]
            replies = await asyncio.gather(*(producer.request(each, REPLY_TIMEOUT_MS) for each in many))
            assert [reply.body for reply in replies] == [b"re: %d" % number for number in range(20)]
            assert {reply.topic for reply in replies} == {REPLY_TOPIC}
            assert all(int(reply.properties["ARRIVE_TIME"]) > 0 for reply in replies)
            # Nothing waits for the second reply to each request; the producer reports its arrival nevertheless.
            outcomes = await asyncio.to_thread(_outcomes, replier, 40)
            assert {outcome["status"] for outcome in outcomes} == {"SEND_OK"}
            large = await producer.request(Message(topic=topic, body=b"large " * 20_000), REPLY_TIMEOUT_MS)
            assert large.body == b"re: " + b"large " * 20_000

    run(cluster, scenario)


def test_java_producer_receives_reply_of_a_python_consumer(cluster: Cluster, clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)

    async def scenario(client: Client) -> None:
        async with Producer(client, new_name("Repliers")) as producer:
            results: list[SendResult] = []

            async def handle(message: ReceivedMessage) -> None:
                results.append(await producer.reply(message, b"python: " + message.body))

            consumer = PushConsumer(client, group, handle, FROM_FIRST)
            consumer.subscribe(topic)
            async with consumer:
                java = clients.new_producer()
                for callback in (False, True):
                    reply = await asyncio.to_thread(
                        java.request, topic, "who?", timeout_ms=REPLY_TIMEOUT_MS, callback=callback
                    )
                    assert reply.body == b"python: who?"
                large = await asyncio.to_thread(java.request, topic, "x" * 50_000, timeout_ms=REPLY_TIMEOUT_MS)
                assert large.body == b"python: " + b"x" * 50_000
            assert [result.queue.topic for result in results] == [REPLY_TOPIC] * 3

    run(cluster, scenario)


def test_python_producer_receives_reply_of_a_python_consumer(cluster: Cluster, clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)

    async def scenario(client: Client) -> None:
        asked: list[ReceivedMessage] = []

        async def handle(message: ReceivedMessage) -> None:
            asked.append(message)

        async with Client(cluster.namesrv_address) as other:
            producer = Producer(other, new_name("Askers"))
            async with producer:
                with pytest.raises(NoReplyError, match="no reply arrived within 200 ms"):
                    await producer.request(Message(topic=topic, body=b"anybody?"), 200)
                assert len(other.requests) == 0
                waiting = asyncio.ensure_future(
                    producer.request(Message(topic=topic, body=b"hello?"), REPLY_TIMEOUT_MS)
                )
                consumer = PushConsumer(client, group, handle, FROM_FIRST)
                consumer.subscribe(topic)
                async with consumer, Producer(client, new_name("Repliers")) as replier:
                    await until(lambda: len(asked) == 2)
                    # The requester that timed out is still running, and discards late replies.
                    await replier.reply(asked[0], b"too late")
                    assert not waiting.done()
                    await replier.send(reply_to(asked[1], b"hello!"))
                    assert (await waiting).body == b"hello!"
                    with pytest.raises(ValueError, match="is not a request"):
                        await replier.reply(await waiting, b"a reply to a reply")
            gone = other.client_id
        async with Producer(client, new_name("Repliers")) as replier:
            with pytest.raises(SendError, match=f"channel of <{gone}> not found") as failed:
                await replier.reply(asked[0], b"is there anybody?")
            assert failed.value.attempts == 1

    run(cluster, scenario)


def _outcomes(replier: Replier, count: int = 1) -> list[dict[str, Any]]:
    """Return the outcomes of the replies, once there are `count`."""
    deadline = time.monotonic() + LIMIT_S
    while len(outcomes := replier.outcomes()) < count:
        assert time.monotonic() < deadline, f"only {len(outcomes)} of {count} replies ended"
        time.sleep(0.02)
    return outcomes
