"""Reading of a topic's newest and future messages without a group or commits."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from delaymq.cli.terminal.sanitize import visible
from delaymq.client import Admin, Client, ClientError, MessageQueue, PullStatus, ReceivedMessage, RefusedError
from delaymq.client.admin.reading import TOOLS_GROUP, QueueReading
from delaymq.client.consumer.expressions import check_expressions
from delaymq.client.subscriptions import Subscription

HELD_MS: Final = 15_000
"""Maximum time for which a broker holds a pull without new messages."""
AGAIN_AFTER_S: Final = 1.0
"""Pause after a broker was unreachable, as it may be restarting."""
MAX_FOLLOWED: Final = 1_024
"""Maximum number of followed queues; each has a held pull at its broker."""

Show = Callable[[ReceivedMessage], Awaitable[None]]


class Tail:
    """Reader of a topic's newest messages, then of new ones."""

    def __init__(self, client: Client, wanted: Subscription, show: Show) -> None:
        self._client = client
        self._topic = wanted.topic
        self._wanted = wanted
        self._show = show
        self._reading = QueueReading(client)

    async def last(self, count: int, queue_id: int | None, of_each_queue: bool) -> dict[MessageQueue, int]:
        """Show the matching messages among the newest, and return the next offset of each queue.

        Raises RefusedError if a broker cannot filter by the expression.
        """
        await check_expressions(self._client, TOOLS_GROUP, [self._wanted])
        route = await self._client.route(self._topic, fresh=True)
        queues = [queue for queue in route.readable if queue_id in (None, queue.queue_id)]
        found: list[ReceivedMessage] = []
        if count:
            found = await Admin(self._client).last_messages(
                self._topic, count, queue_id=queue_id, of_each_queue=of_each_queue
            )
        following: dict[MessageQueue, int] = {}
        for queue in queues:
            _, end = await self._reading.bounds(queue)
            seen = [message.queue_offset + 1 for message in found if message.queue == queue]
            # Messages stored between reading the messages and reading the end are left to `follow`.
            following[queue] = max(seen) if seen else end
        for message in await self._chosen(found):
            await self._show(message)
        return following

    async def _chosen(self, found: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return the matching messages; SQL92 expressions are evaluated by the brokers."""
        if not self._wanted.is_sql:
            return [message for message in found if self._wanted.accepts(message.tags)]
        ranges: dict[MessageQueue, range] = {}
        for message in found:
            begin = ranges[message.queue].start if message.queue in ranges else message.queue_offset
            ranges[message.queue] = range(begin, message.queue_offset + 1)
        places: set[tuple[MessageQueue, int]] = set()
        for queue, offsets in ranges.items():
            fulfilling = await self._reading.read(queue, offsets.start, offsets.stop, self._wanted)
            places.update((queue, message.queue_offset) for message in fulfilling)
        return [message for message in found if (message.queue, message.queue_offset) in places]

    async def follow(self, following: dict[MessageQueue, int]) -> None:
        """Show new messages indefinitely; wait for brokers that become unreachable."""
        if len(following) > MAX_FOLLOWED:
            raise ValueError(f"cannot follow {len(following)} queues (at most {MAX_FOLLOWED}): select one with --queue")
        async with asyncio.TaskGroup() as tasks:
            for queue, offset in following.items():
                tasks.create_task(self._follow_queue(queue, offset))

    async def _follow_queue(self, queue: MessageQueue, offset: int) -> None:
        is_gone = False
        while True:
            try:
                found = await self._reading.pull(queue, offset, wait_ms=HELD_MS, wanted=self._wanted)
            except ClientError as error:
                if not is_gone:
                    what = "request rejected by" if isinstance(error, RefusedError) else "waiting for"
                    print(visible(f"delaymq: {what} {queue.broker_name}: {error}"), file=sys.stderr)
                is_gone = True
                await asyncio.sleep(AGAIN_AFTER_S)
                continue
            is_gone = False
            for message in found.messages:
                await self._show(message)
            if found.status is not PullStatus.NOTHING_NEW or found.next_offset > offset:
                offset = found.next_offset
