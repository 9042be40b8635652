"""Helpers for tests of the Python client: scenarios with a time limit, recording handlers, waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count

from delaymq.client import (
    Client,
    ClientOptions,
    ConsumeFrom,
    Handler,
    NoRouteError,
    PullConsumer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from harness.brokers import Cluster

LIMIT_S = 240.0
"""Timeout of a scenario; below the tests' own limit, so that a failure shows the pending wait."""
POLL_S = 0.02
HELD_MS = 10_000
FROM_FIRST = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, local_retry_ms=200)
NewCluster = Callable[..., Cluster]

_names = count(1)


def new_name(kind: str) -> str:
    """Return a unique name for a topic or group."""
    return f"Py{kind}{next(_names)}_{time.monotonic_ns() % 1_000_000}"


def run(cluster: Cluster, scenario: Callable[[Client], Awaitable[None]], options: ClientOptions | None = None) -> None:
    """Run `scenario` with a client of the cluster, within a time limit."""

    async def with_client() -> None:
        async with asyncio.timeout(LIMIT_S), Client(cluster.namesrv_address, options) as client:
            await scenario(client)

    asyncio.run(with_client())


async def until(is_so: Callable[[], bool]) -> None:
    """Wait, within the scenario's time limit."""
    while not is_so():  # noqa: ASYNC110 - no event to wait for
        await asyncio.sleep(POLL_S)


def subscribed(
    client: Client, group: str, topic: str, handler: Handler, options: PushConsumerOptions = FROM_FIRST
) -> PushConsumer:
    """Return a consumer of all messages of a topic, not started."""
    consumer = PushConsumer(client, group, handler, options)
    consumer.subscribe(topic)
    return consumer


class Collected:
    """A handler that records received messages."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


async def settled(client: Client, topic: str, *consumers: PushConsumer) -> None:
    """Wait until the consumers share all queues of the topic: each has at least one, and none has two owners."""
    queues = set((await client.route(topic)).readable)

    def shared() -> bool:
        assigned = [{queue for queue in consumer.assigned if queue.topic == topic} for consumer in consumers]
        return all(assigned) and set().union(*assigned) == queues and sum(map(len, assigned)) == len(queues)

    await until(shared)


async def first_of(client: Client, topic: str) -> ReceivedMessage:
    async with PullConsumer(client, new_name("Group")) as consumer:
        while True:
            try:
                for queue in await consumer.queues(topic):
                    result = await consumer.pull(queue, 0)
                    if result.messages:
                        return result.messages[0]
            except NoRouteError:
                pass
            await asyncio.sleep(POLL_S * 5)
