"""What consumers that share their group's queues tell the client, whether they are pushed to or polled."""

from __future__ import annotations

from collections.abc import Iterable

from delaymq.client.assignment import Assignment
from delaymq.client.offsets import Offsets
from delaymq.client.options import ConsumeFrom, MessageModel
from delaymq.client.subscriptions import Subscription
from delaymq.protocol.bodies import ConsumerData, MessageQueue, ProducerData


class GroupMember:
    """Most of a `Member` of the client; who reads, and how, is said by what is derived from it."""

    group: str
    _subscriptions: dict[str, Subscription]
    _offsets: Offsets
    _assignment: Assignment
    retry_topic = ""
    """Of a consumer whose failed messages come again there."""

    def producer_data(self) -> ProducerData | None:
        return None

    def topics(self) -> Iterable[str]:
        return list(self._subscriptions)

    def membership_changed(self) -> None:
        """Members, routes or a connection changed: the shares are worked out again."""
        self._offsets.forget_saved()
        self._assignment.look_again()

    def _consumer_data(self, consume_type: str, model: MessageModel, consume_from: ConsumeFrom) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=consume_type,
            message_model=model.value,
            consume_from_where=consume_from.value,
            subscription_data_set=[each.data() for each in self._subscriptions.values()],
        )

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """How far this member is in the topic's queues that it has."""
        return {queue: offset for queue, offset in self._assignment.offsets().items() if queue.topic == topic}
