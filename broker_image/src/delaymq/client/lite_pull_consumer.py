"""Consuming by polls: messages are pulled ahead within limits, the caller takes them when it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Self

from delaymq.client.assignment import Assignment
from delaymq.client.background import Background
from delaymq.client.client import Client
from delaymq.client.consumer_stats import Tally
from delaymq.client.errors import ClosedError
from delaymq.client.expressions import check_expressions
from delaymq.client.group_member import GroupMember
from delaymq.client.lite_offsets import SoughtOffsets
from delaymq.client.lite_reading import SharedOrAssigned, reading_options
from delaymq.client.messages import ReceivedMessage
from delaymq.client.offsets import BrokerOffsets
from delaymq.client.options import LitePullOptions, MessageModel
from delaymq.client.poll_buffer import PollBuffer
from delaymq.client.queue_calls import QueueCalls
from delaymq.client.rates import SAMPLE_INTERVAL_MS
from delaymq.client.rebalance import Shares
from delaymq.client.running_info import queue_info, running_info
from delaymq.client.subscriptions import ALL, Subscription, subscription_to
from delaymq.client.unregistering import unregister
from delaymq.clock import now_ms
from delaymq.message.names import group_problem
from delaymq.protocol.bodies import ConsumerData, ConsumerRunningInfo, MessageQueue

POLL_TIMEOUT_MS = 5_000
POLL_MESSAGES = 32
POLLED = "CONSUME_ACTIVELY"


class LitePullConsumer(GroupMember):
    """A member of a group that is polled. One task polls; the others may call everything else.

    Either `subscribe`: the group's members share the topics' queues, and they move when members come and go. Or
    `assign`: exactly these queues, whoever else reads them.

        consumer = LitePullConsumer(client, "group")
        consumer.subscribe("Topic", "TagA || TagB")
        async with consumer:
            async for message in consumer: ...

    A message counts as done when the next one is asked for (by `poll`, `async for`, `commit` or a close without an
    error), and only what is done is committed: after a crash messages come again, and none is skipped.
    """

    _offsets: SoughtOffsets

    def __init__(self, client: Client, group: str, options: LitePullOptions | None = None) -> None:
        problem = group_problem(group)
        if problem is not None:
            raise ValueError(problem)
        self.group = group
        self.options = options or LitePullOptions()
        self._client = client
        self._calls = QueueCalls(client, group)
        self._offsets = SoughtOffsets(BrokerOffsets(self._calls), saves=self.options.auto_commit)
        self._buffer = PollBuffer(self.options.max_cached_in_all)
        self._tally = Tally()
        self._background = Background(f"lite pull consumer {group}")
        self._subscriptions: dict[str, Subscription] = {}
        self._shares = SharedOrAssigned(Shares(client, group, allocation=self.options.allocation))
        self._assignment = Assignment(
            client,
            group,
            reading_options(self.options),
            subscriptions=self._subscriptions,
            retry_topic="",
            calls=self._calls,
            shares=self._shares,
            locks=None,
            offsets=self._offsets,
            handling=self._buffer,
            background=self._background,
            is_held=self._is_held,
            tally=self._tally,
        )
        self._started_ms = 0
        self._joined = False
        self._closed = False
        self._polls = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What was being worked on when it failed is not done: it comes again.
        await self._close(finish=kind is None)

    # What is read.

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """Takes part in reading `topic`, before or after the start: messages with one of these tags (`A || B`, `*`).

        With `sql` those whose properties fulfil an SQL92 condition, where the broker has enablePropertyFilter=true.
        All members of a group subscribe to the same. ValueError for an illegal topic or tags, or after `assign`.
        """
        if self._shares.assigned is not None:
            raise ValueError("this consumer has assigned queues: make another one to subscribe")
        self._subscriptions[topic] = subscription_to(topic, tags, sql, now_ms())
        self._assignment.subscription_changed(topic)

    def unsubscribe(self, topic: str) -> None:
        """Reads `topic` no more."""
        if self._subscriptions.pop(topic, None) is not None:
            self._assignment.subscription_changed(topic)

    def assign(self, queues: Iterable[MessageQueue], tags: str = ALL) -> None:
        """Reads exactly `queues` from now on, before or after the start, whatever the group's other members read.

        ValueError for an illegal topic or tags, or after `subscribe`.
        """
        if self._shares.assigned is None and self._subscriptions:
            raise ValueError("this consumer has subscribed: make another one to assign queues")
        queues = frozenset(queues)
        wanted = {topic: Subscription(topic, tags, now_ms()) for topic in {queue.topic for queue in queues}}
        self._shares.assigned = queues
        for topic in self._subscriptions.keys() - wanted.keys():
            del self._subscriptions[topic]
        for topic, subscription in wanted.items():
            known = self._subscriptions.get(topic)
            if known is None or known.expression != tags:
                self._subscriptions[topic] = subscription
                self._assignment.subscription_changed(topic)
        self._assignment.look_again()

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that are read now; with `subscribe` they are known a moment after the start."""
        return [reader.queue for reader in self._assignment.readers]

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The topic's queues that can be read. Raises NoRouteError."""
        return (await self._client.route(topic)).readable

    # Messages.

    async def poll(
        self, timeout_ms: int = POLL_TIMEOUT_MS, *, max_messages: int = POLL_MESSAGES
    ) -> list[ReceivedMessage]:
        """The next messages, at least one unless none comes within `timeout_ms` (0: what is there) or it is closed.

        Those of the poll before count as done. Of one queue they are in its order; queues take turns. What brokers
        refuse or cannot answer meanwhile is logged and tried again.
        """
        if max_messages <= 0 or timeout_ms < 0:
            raise ValueError("max_messages is more than 0, and timeout_ms not negative")
        if not self._joined:
            raise ClosedError("the consumer is not started or closed: use `async with LitePullConsumer(client, group)`")
        if self._shares.assigned is None and not self._subscriptions:
            raise ValueError("there is nothing to poll: subscribe to a topic or assign queues first")
        if self._polls:
            raise RuntimeError("another poll is under way: one task polls, since each poll ends what the last one gave")
        self._polls = True
        try:
            return await self._poll(timeout_ms, max_messages)
        finally:
            self._polls = False

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Message by message until the consumer is closed."""
        return self._messages()

    def pause(self, *queues: MessageQueue) -> None:
        """Polls give nothing of `queues` and nothing more is pulled from them, until `resume`."""
        self._buffer.paused |= set(queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Ends the pause of `queues`."""
        self._buffer.paused -= set(queues)
        self._wake()

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The queues that are paused."""
        return frozenset(self._buffer.paused)

    # Offsets.

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Goes on at `offset` of `queue`; what was pulled of it is dropped. It is committed as any other progress.

        An offset that the queue does not have any more, or not yet, becomes the nearest that it has. ValueError when
        the queue is not assigned to this consumer now.
        """
        if offset < 0:
            raise ValueError(f"offset {offset}: offsets begin at 0")
        if queue not in (self._shares.assigned or self.assigned):
            raise ValueError(f"{queue} is not assigned to this consumer now: it has {self.assigned or 'no queue yet'}")
        self._offsets.seek(queue, offset)
        await self._assignment.reset({queue: offset})

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Goes on at the oldest message of `queue`. Errors as `seek`, and ClientError when it cannot be asked."""
        await self.seek(queue, await self._calls.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Goes on at the next message that comes to `queue`. Errors as `seek_to_begin`."""
        await self.seek(queue, await self._calls.max_offset(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at `timestamp_ms` (since 1970) or later. Raises ClientError."""
        return await self._calls.offset_at(queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset at the broker: the next message to consume; None when there is none. ClientError."""
        return await self._calls.committed_offset(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Stores `offsets` (the next messages to consume), or those behind all that was polled so far, which then
        counts as done. Raises ClientError when a broker does not take one; the others are stored all the same.
        """
        if offsets is None:
            self._finish_taken()
            offsets = self._offsets.unless_sought(self._assignment.offsets())
        stored = await asyncio.gather(
            *(self._calls.commit(queue, offset) for queue, offset in offsets.items()), return_exceptions=True
        )
        for result in stored:
            if isinstance(result, BaseException):
                raise result

    # From start to end.

    async def start(self) -> None:
        """Joins the group; messages can be polled as soon as the queues are shared out.

        Raises ClosedError after a close, RefusedError when a broker does not take an SQL92 expression.
        """
        if self._closed:
            raise ClosedError(f"the consumer of {self.group} was closed: make a new one")
        await check_expressions(self._client, self.group, self._subscriptions.values())
        await self._client.join(self)
        self._joined = True
        self._started_ms = now_ms()
        self._background.every(SAMPLE_INTERVAL_MS, self._tally.sample)
        self._assignment.start()

    async def close(self) -> None:
        """Commits what was polled (with auto commit) and leaves the group. A poll that waits returns nothing."""
        await self._close(finish=True)

    # What the client asks of its members.

    def consumer_data(self) -> ConsumerData | None:
        return self._consumer_data(POLLED, MessageModel.CLUSTERING, self.options.consume_from)

    def reset_offsets(self, offsets: dict[MessageQueue, int]) -> None:
        """Goes on at these offsets, as an administrator wants it."""
        self._background.spawn(self._reset(offsets))

    def running_info(self) -> ConsumerRunningInfo:
        """What it does now, for an administrator."""
        return running_info(
            name_servers=self._client.name_servers,
            consume_type=POLLED,
            started_ms=self._started_ms,
            ordered=False,
            concurrency=1,
            options=self.options,
            subscriptions=self._subscriptions.values(),
            queues={reader.queue: queue_info(reader, (), ordered=False) for reader in self._assignment.readers},
            statuses=self._tally.statuses(),
        )

    # Inside.

    async def _reset(self, offsets: dict[MessageQueue, int]) -> None:
        # Of the group's other members too: whoever gets one of their queues later must go on where they were by then.
        ours = self._shares.assigned or self.assigned
        offsets = {queue: offset for queue, offset in offsets.items() if queue in ours}
        for queue, offset in offsets.items():
            self._offsets.seek(queue, offset)
        await self._offsets.commit(offsets)
        await self._assignment.reset(offsets)

    async def _poll(self, timeout_ms: int, max_messages: int) -> list[ReceivedMessage]:
        self._finish_taken()
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while not (messages := self._buffer.take(max_messages)) and self._joined and timeout_ms:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._buffer.wait()
            except TimeoutError:
                return self._buffer.take(max_messages)
        return messages

    async def _messages(self) -> AsyncIterator[ReceivedMessage]:
        while self._joined:
            # One at a time: what a caller that leaves its loop has not seen must not count as done.
            for message in await self.poll(max_messages=1):
                yield message

    def _finish_taken(self) -> None:
        was_full = self._buffer.is_full
        self._buffer.finish_taken()
        if was_full:
            self._wake()

    def _is_held(self, queue: MessageQueue) -> bool:
        return self._buffer.is_full or queue in self._buffer.paused

    def _wake(self) -> None:
        self._buffer.wake()
        for reader in self._assignment.readers:
            reader.wake()

    async def _close(self, *, finish: bool) -> None:
        if not self._joined:
            return
        self._joined = False
        self._closed = True
        try:
            await self._assignment.stop()
            await self._background.close()
            if finish:
                self._buffer.finish_taken()
            await self._assignment.commit()
        finally:
            # Also when the caller is cancelled: nothing of it goes on.
            self._background.cancel()
            self._assignment.clear()
            self._client.leave(self)
            self._buffer.wake()
        await unregister(self._client, self._subscriptions, consumer_group=self.group)
