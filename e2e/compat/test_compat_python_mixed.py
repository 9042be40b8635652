"""A group with both RocketMQ's Java client and DelayMQ's Python client as members, on either broker."""

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

import pytest
from compat.python_scenario import FROM_FIRST, Collected, run, subscribed, until
from delaymq.client import (
    Client,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from harness.brokers import Cluster
from harness.clients import PushConsumer as JavaConsumer
from harness.clients import Workbench
from harness.driver import Received

pytestmark = pytest.mark.core

Got = TypeVar("Got", ReceivedMessage, Received)


def test_java_and_python_members_share_the_queues_of_a_group(cluster: Cluster, clients: Workbench) -> None:
    topic, group = clients.topic(queues=4), clients.group(retry_topic=True)

    async def scenario(client: Client) -> None:
        java = await asyncio.to_thread(clients.push, topic, group=group, **{"from": "CONSUME_FROM_FIRST_OFFSET"})
        got = Collected()
        consumer = subscribed(client, group, topic, got)
        async with Producer(client) as producer:
            async with consumer:
                await until(lambda: _numbers(consumer, topic) in ([0, 1], [2, 3]))
                ours = _numbers(consumer, topic)
                await _until_each_gets_its_half(producer, topic, ours, got, java)
                # The Python member receives everything after the Java member has left …
                await asyncio.to_thread(clients.stop, java)
                await until(lambda: _numbers(consumer, topic) == [0, 1, 2, 3])
                await _send_to_all(producer, topic, b"alone")
                await until(lambda: _queues_of(got.messages, b"alone") == [0, 1, 2, 3])
                second = await asyncio.to_thread(clients.push, topic, group=group)
                await until(lambda: len(_numbers(consumer, topic)) == 2)
            # … and vice versa.
            await _send_to_all(producer, topic, b"again")
            await until(
                lambda: {message.queue_id for message in _with(second.inbox.messages(), b"again")} == set(range(4))
            )

    run(cluster, scenario)


def test_java_and_python_members_consume_in_order_under_one_lock(cluster: Cluster, clients: Workbench) -> None:
    topic, group = clients.topic(queues=4), clients.group(retry_topic=True)

    async def scenario(client: Client) -> None:
        first: dict[str, Any] = {"orderly": True, "from": "CONSUME_FROM_FIRST_OFFSET"}
        java = await asyncio.to_thread(clients.push, topic, group=group, **first)
        got = Collected()
        consumer = subscribed(client, group, topic, got, replace(FROM_FIRST, ordered=True, lock_retry_ms=100))
        async with Producer(client) as producer, consumer:
            await until(lambda: _numbers(consumer, topic) in ([0, 1], [2, 3]))
            ours = _numbers(consumer, topic)
            bodies: list[bytes] = []
            # Wait until the Java member has released the queues now assigned to the Python member.
            while not bodies or _queues_of(got.messages, bodies[-1]) != ours:
                bodies.append(b"%d" % len(bodies))
                await _send_to_all(producer, topic, bodies[-1])
                await until(lambda: len(got.messages) + len(java.inbox.messages()) >= 4 * len(bodies))
        for number in range(4):
            python = [each.body for each in got.messages if each.queue.queue_id == number]
            others = [each.body for each in java.inbox.messages() if each.queue_id == number]
            # One member holds each queue's lock: Java's messages from before the release come first; none is repeated.
            assert others + python == bodies
            assert number in ours or not python

    run(cluster, scenario)


async def _until_each_gets_its_half(
    producer: Producer, topic: str, ours: list[int], got: Collected, java: JavaConsumer
) -> None:
    """Wait for the Java member to release its queues; until then both may receive a message."""
    theirs = [number for number in range(4) if number not in ours]
    for number in count():
        body = b"round %d" % number
        await _send_to_all(producer, topic, body)
        await until(lambda body=body: len(_with(got.messages, body)) + len(_with(java.inbox.messages(), body)) >= 4)
        if (
            _queues_of(got.messages, body) == ours
            and sorted(each.queue_id for each in _with(java.inbox.messages(), body)) == theirs
        ):
            return


async def _send_to_all(producer: Producer, topic: str, body: bytes) -> None:
    for queue in await producer.queues(topic):
        await producer.send(Message(topic=topic, body=body), queue=queue)


def _with(messages: list[Got], body: bytes) -> list[Got]:
    return [message for message in messages if message.body == body]


def _queues_of(messages: list[ReceivedMessage], body: bytes) -> list[int]:
    return sorted(message.queue.queue_id for message in _with(messages, body))


def _numbers(consumer: PushConsumer, topic: str) -> list[int]:
    return sorted(queue.queue_id for queue in consumer.assigned if queue.topic == topic)
