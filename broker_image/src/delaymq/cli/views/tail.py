"""Looking at a topic's newest messages, and at those that come, without a group: nothing is committed."""

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
"""How long a broker holds a pull for which there is nothing new."""
AGAIN_AFTER_S: Final = 1.0
"""Pause after a broker could not be asked: it may be restarting."""
MAX_FOLLOWED: Final = 1_024
"""Queues that are followed: each has a pull that waits at its broker."""

Show = Callable[[ReceivedMessage], Awaitable[None]]


class Tail:
    """The newest messages of a topic, then what comes."""

    def __init__(self, client: Client, wanted: Subscription, show: Show) -> None:
        self._client = client
        self._topic = wanted.topic
        self._wanted = wanted
        self._show = show
        self._reading = QueueReading(client)

    async def last(self, count: int, queue_id: int | None, of_each_queue: bool) -> dict[MessageQueue, int]:
        """Shows those of the newest messages that are wanted; gives for each queue the offset behind what was looked
        at. RefusedError where a broker cannot filter by the expression."""
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
            # What came between the look at the messages and at the end is for those who follow.
            following[queue] = max(seen) if seen else end
        for message in await self._chosen(found):
            await self._show(message)
        return following

    async def _chosen(self, found: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those that are wanted; what fulfils an expression only brokers can tell."""
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
        """Shows what comes, for ever; a broker that goes away is waited for."""
        if len(following) > MAX_FOLLOWED:
            raise ValueError(f"{len(following)} queues are too many to follow (at most {MAX_FOLLOWED}): name one")
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
                    what = "refuses" if isinstance(error, RefusedError) else "is waited for"
                    print(visible(f"delaymq: {queue.broker_name} {what}: {error}"), file=sys.stderr)
                is_gone = True
                await asyncio.sleep(AGAIN_AFTER_S)
                continue
            is_gone = False
            for message in found.messages:
                await self._show(message)
            if found.status is not PullStatus.NOTHING_NEW or found.next_offset > offset:
                offset = found.next_offset
