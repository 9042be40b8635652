"""Manual pulls: the caller chooses queues, offsets and commits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from delaymq.client.core.client import Client
from delaymq.client.core.queue_calls import PullResult, QueueCalls
from delaymq.client.core.unregister import unregister
from delaymq.client.subscriptions import ALL, Subscription, subscription_to
from delaymq.clock import now_ms
from delaymq.message.names import group_problem
from delaymq.protocol.bodies import ConsumerData, MessageQueue, ProducerData


class PullConsumer:
    """A consumer without assigned queues. Use as `async with PullConsumer(client, "group") as consumer:`."""

    def __init__(self, client: Client, group: str) -> None:
        problem = group_problem(group)
        if problem is not None:
            raise ValueError(problem)
        self._client = client
        self.group = group
        self.calls = QueueCalls(client, group)
        """Requests for offsets: committed, commit, min, max, by time."""
        self._topics: dict[str, Subscription] = {}
        self._joined = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the client; the group is registered with brokers at the first heartbeat after the first pull."""
        await self._client.join(self)
        self._joined = True

    async def close(self) -> None:
        """Unregister the group from the brokers. Offsets are not committed."""
        if self._joined:
            self._joined = False
            self._client.leave(self)
            await unregister(self._client, self._topics, consumer_group=self.group)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the topic's readable queues."""
        return (await self._client.route(topic)).readable

    async def pull(
        self, queue: MessageQueue, offset: int, *, tags: str = ALL, sql: str | None = None, max_messages: int = 32,
        suspend_ms: int = 0,
    ) -> PullResult:  # fmt: skip
        """Return messages of `queue` from `offset` on; `suspend_ms` lets the broker wait for one. ValueError for
        invalid tags.
        """
        subscription = self._topics.get(queue.topic)
        if subscription is None or subscription.expression != (sql or tags) or subscription.is_sql is (sql is None):
            subscription = subscription_to(queue.topic, tags, sql, now_ms())
            self._topics[queue.topic] = subscription
        return await self.calls.pull(queue, offset, subscription, max_messages=max_messages, suspend_ms=suspend_ms)

    # Called by the client.

    def producer_data(self) -> ProducerData | None:
        return None

    def consumer_data(self) -> ConsumerData | None:
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY",
            subscription_data_set=[each.data() for each in self._topics.values()],
        )

    def topics(self) -> Iterable[str]:
        return self._topics

    def membership_changed(self) -> None:
        """Do nothing: the caller chooses the queues."""

    def reset_offsets(self, offsets: dict[MessageQueue, int]) -> None:
        """Do nothing: the caller manages the offsets."""
