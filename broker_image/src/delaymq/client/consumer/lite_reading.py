"""Queues and prefetch limits of a lite pull consumer's readers."""

from __future__ import annotations

from delaymq.client.consumer.rebalance.shares import Share, Shares
from delaymq.client.options import LitePullOptions, PushConsumerOptions
from delaymq.protocol.bodies import MessageQueue


class ShareOrAssignment:
    """The group's allocation, or, once `assigned` is set, exactly these queues."""

    def __init__(self, of_group: Shares) -> None:
        self.assigned: frozenset[MessageQueue] | None = None
        self._of_group = of_group

    async def share(self, topic: str) -> Share | None:
        """Return this member's queues of `topic`; None while brokers do not list it. ClientError if no broker
        responds.
        """
        if self.assigned is None:
            return await self._of_group.share(topic)
        return Share(frozenset(queue for queue in self.assigned if queue.topic == topic), has_others=False)


def reading_options(options: LitePullOptions) -> PushConsumerOptions:
    """Return the push consumer options that control the reading of queues."""
    return PushConsumerOptions(
        consume_from=options.consume_from,
        consume_timestamp_ms=options.consume_timestamp_ms,
        allocation=options.allocation,
        pull_batch=options.pull_batch,
        suspend_timeout_ms=options.suspend_timeout_ms,
        max_cached_messages=options.max_cached_messages,
        max_cached_bytes=options.max_cached_bytes,
        max_cached_span=options.max_cached_span,
        rebalance_interval_ms=options.rebalance_interval_ms,
        commit_interval_ms=options.commit_interval_ms,
    )
