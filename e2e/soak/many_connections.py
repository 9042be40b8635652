"""Cost of many connections to a broker: some only send heartbeats and hold a pull, others send and consume."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from delaymq.client import (
    Admin,
    Client,
    ClientOptions,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.transport import RemotingConnection, connect
from harness.brokers import HOST, OurCluster

TOPIC = "Connected"
AT_ONCE = 50
"""Number of connections opened concurrently."""
SENDS_EACH = 20
SETTLE_S = 2.0
PATIENT = ClientOptions(request_timeout_ms=60_000, connect_timeout_ms=60_000)
"""Two hundred clients in one process take a while on a busy machine."""
PATIENT_SENDS = ProducerOptions(send_timeout_ms=60_000)


@dataclass(frozen=True, kw_only=True)
class Connections:
    """RssAnon in KiB, and the share of each kind of connection."""

    idle: int
    active: int
    before_kib: int
    with_idle_kib: int
    with_active_kib: int
    after_kib: int
    """After all were closed."""
    kib_an_idle_one: float
    kib_an_active_one: float
    received: int


async def connected(cluster: OurCluster, idle: int, active: int, memory_kib: Callable[[], int]) -> Connections:
    """Return the figures for each number of connections."""
    received = 0

    async def handle(message: ReceivedMessage) -> None:
        nonlocal received
        received += 1

    before = memory_kib()
    async with AsyncExitStack() as stack:
        for at in range(0, idle, AT_ONCE):
            opened = await asyncio.gather(*[_idle(cluster, at + i) for i in range(min(AT_ONCE, idle - at))])
            for connection in opened:
                stack.callback(connection.close)
        await asyncio.sleep(SETTLE_S)
        with_idle = memory_kib()
        async with Client(cluster.namesrv_address) as client:
            await Admin(client).create_topic(TOPIC, queues=16)
        producers = []
        for number in range(active):
            client = await stack.enter_async_context(Client(cluster.namesrv_address, PATIENT))
            producers.append(await stack.enter_async_context(Producer(client, options=PATIENT_SENDS)))
            consumer = PushConsumer(client, f"connected-{number % 10}", handle, PushConsumerOptions())
            consumer.subscribe(TOPIC)
            await stack.enter_async_context(consumer)
        await asyncio.gather(*[_send(producer) for producer in producers])
        await asyncio.sleep(SETTLE_S)
        with_active = memory_kib()
    await asyncio.sleep(SETTLE_S)
    return Connections(
        idle=idle,
        active=active,
        before_kib=before,
        with_idle_kib=with_idle,
        with_active_kib=with_active,
        after_kib=memory_kib(),
        kib_an_idle_one=round((with_idle - before) / max(idle, 1), 2),
        kib_an_active_one=round((with_active - with_idle) / max(active, 1), 2),
        received=received,
    )


async def _idle(cluster: OurCluster, number: int) -> RemotingConnection:
    """Return a member of a group that sent its heartbeat and nothing since."""
    connection = await connect(HOST, cluster.listen_port)
    subscription = SubscriptionData(topic=TOPIC, sub_string="*", sub_version=1)
    member = ConsumerData(
        group_name=f"idle-{number % 10}",
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[subscription],
    )
    heartbeat = HeartbeatData(client_id=f"127.0.0.1@idle-{number}", consumer_data_set=[member])
    await connection.request(request_command(RequestCode.HEART_BEAT, {}, heartbeat.encode()))
    return connection


async def _send(producer: Producer) -> None:
    for _ in range(SENDS_EACH):
        await producer.send(Message(topic=TOPIC, body=bytes(512)))
        await asyncio.sleep(0.1)
