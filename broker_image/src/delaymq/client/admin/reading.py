"""Reading of a queue without using a group's offset."""

from __future__ import annotations

from typing import Final

from delaymq.client.core.client import Client
from delaymq.client.core.queue_calls import PullResult, PullStatus, QueueCalls
from delaymq.client.messages import ReceivedMessage
from delaymq.client.subscriptions import Subscription
from delaymq.protocol.bodies import MessageQueue

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""Group that every broker has for tools: reading with it requires no group of one's own and leaves no trace."""
PULL_BATCH: Final = 32
"""Default maximum of messages per response of a broker."""


class QueueReading:
    """Pulls with the tools' group; commits nothing, and brokers do not register a member."""

    def __init__(self, client: Client) -> None:
        self._calls = QueueCalls(client, TOOLS_GROUP)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count: int = PULL_BATCH,
        wait_ms: int = 0,
        wanted: Subscription | None = None,
    ) -> PullResult:
        """Return messages of `queue` from `offset` on, all or the `wanted` ones; the broker waits up to `wait_ms`
        for one.

        The pull contains the filter itself, so the broker needs no subscription of a group.
        """
        subscription = wanted or Subscription(queue.topic)
        return await self._calls.pull(queue, offset, subscription, max_messages=count, suspend_ms=wait_ms)

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the offset of the oldest message, and that of the next message."""
        return max(await self._calls.min_offset(queue), 0), max(await self._calls.max_offset(queue), 0)

    async def first_at(self, queue: MessageQueue, at_ms: int) -> int:
        """Return the offset of the first message stored at `at_ms` or later, or the end if there is none.

        Brokers return the message nearest to a time (29), which may be one of several with that time, or an earlier
        one.
        """
        low, high = await self.bounds(queue)
        if low >= high:
            return high
        at = min(max(await self._calls.offset_at(queue, at_ms), low), high - 1)
        while at > low:  # skip back over messages with the same time
            begin = max(at - PULL_BATCH, low)
            before = [each for each in await self.read(queue, begin, at) if each.queue_offset < at]
            if not before or before[0].store_timestamp_ms < at_ms:
                at = begin
                break
            at = begin
        while at < high:
            found = await self.pull(queue, at)
            for message in found.messages:
                if message.store_timestamp_ms >= at_ms:
                    return message.queue_offset
            if found.next_offset <= at:
                break
            at = found.next_offset
        return max(at, high)

    async def read(
        self, queue: MessageQueue, begin: int, end: int, wanted: Subscription | None = None
    ) -> list[ReceivedMessage]:
        """Return messages with offsets from `begin` up to `end` (exclusive); deleted and unwanted ones are omitted."""
        messages: list[ReceivedMessage] = []
        at = begin
        while at < end:
            found = await self.pull(queue, at, count=min(PULL_BATCH, end - at), wanted=wanted)
            messages += [each for each in found.messages if begin <= each.queue_offset < end]
            moved_on = found.next_offset > at
            if not moved_on or found.status is PullStatus.NOTHING_NEW:
                break
            at = found.next_offset
        return messages

    async def last(self, queue: MessageQueue, count: int) -> list[ReceivedMessage]:
        """Return the newest `count` messages, oldest first."""
        low, high = await self.bounds(queue)
        return await self.read(queue, max(high - count, low), high)
