"""Base of push and lite pull consumers, which share their group's queues."""

from __future__ import annotations

from collections.abc import Iterable

from delaymq.client.consumer.expressions import check_expressions
from delaymq.client.consumer.offset_store.broker_offsets import OffsetStore
from delaymq.client.consumer.queues.assigned_queues import AssignedQueues
from delaymq.client.consumer.stats.consumer_stats import Tally
from delaymq.client.core.background import Background
from delaymq.client.core.client import Client
from delaymq.client.core.queue_calls import QueueCalls
from delaymq.client.errors import ClosedError
from delaymq.client.options import ConsumeFrom, MessageModel
from delaymq.client.subscriptions import Subscription
from delaymq.message.names import group_problem
from delaymq.protocol.bodies import ConsumerData, MessageQueue, ProducerData


class GroupMember:
    """Most of a `Member` of the client; subclasses determine who reads, and how."""

    _offsets: OffsetStore
    _assignment: AssignedQueues
    retry_topic = ""
    """Retry topic of a consumer whose failed messages are redelivered."""

    def __init__(self, client: Client, group: str, kind: str) -> None:
        problem = group_problem(group)
        if problem is not None:
            raise ValueError(problem)
        self.group = group
        self._client = client
        self._calls = QueueCalls(client, group)
        self._tally = Tally()
        self._background = Background(f"{kind} {group}")
        self._subscriptions: dict[str, Subscription] = {}
        self._started_ms = 0
        self._joined = False
        self._closed = False

    @property
    def assigned(self) -> list[MessageQueue]:
        """The assigned queues; those of subscribed topics are available shortly after the start."""
        return [reader.queue for reader in self._assignment.readers]

    async def _check_start(self) -> None:
        """Raise ClosedError after a close, ValueError after a start, RefusedError if a broker rejects an SQL92
        expression.
        """
        if self._closed:
            raise ClosedError(f"the consumer of {self.group} was closed: create a new one")
        if self._joined:
            raise ValueError(f"the consumer of {self.group} has already been started")
        await check_expressions(self._client, self.group, self._subscriptions.values())

    # Called by the client.

    def producer_data(self) -> ProducerData | None:
        return None

    def topics(self) -> Iterable[str]:
        return list(self._subscriptions)

    def membership_changed(self) -> None:
        """Rebalance, since members, routes or a connection changed."""
        self._offsets.forget_saved()
        self._assignment.rebalance_soon()

    def _consumer_data(self, consume_type: str, model: MessageModel, consume_from: ConsumeFrom) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=consume_type,
            message_model=model.value,
            consume_from_where=consume_from.value,
            subscription_data_set=[each.data() for each in self._subscriptions.values()],
        )

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets of this member's queues of the topic."""
        return {queue: offset for queue, offset in self._assignment.offsets().items() if queue.topic == topic}
