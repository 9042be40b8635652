"""Consumption by polling: messages are prefetched within limits, and the caller takes them when it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Self

from delaymq.client.consumer.lite_reading import ShareOrAssignment, reading_options
from delaymq.client.consumer.offset_store.broker_offsets import BrokerOffsets
from delaymq.client.consumer.offset_store.lite_offsets import SeekableOffsets
from delaymq.client.consumer.queues.assigned_queues import AssignedQueues
from delaymq.client.consumer.queues.poll_buffer import PollBuffer
from delaymq.client.consumer.rebalance.shares import Shares
from delaymq.client.consumer.running_info import queue_info, running_info
from delaymq.client.consumer.seeking import SeekingMember
from delaymq.client.consumer.stats.rates import SAMPLE_INTERVAL_MS
from delaymq.client.core.client import Client
from delaymq.client.core.unregister import unregister
from delaymq.client.errors import ClosedError
from delaymq.client.messages import ReceivedMessage
from delaymq.client.options import LitePullOptions, MessageModel
from delaymq.client.subscriptions import ALL, Subscription, subscription_to
from delaymq.clock import now_ms
from delaymq.protocol.bodies import ConsumerData, ConsumerRunningInfo, MessageQueue

POLL_TIMEOUT_MS = 5_000
POLL_MESSAGES = 32
POLLED = "CONSUME_ACTIVELY"


class LitePullConsumer(SeekingMember):
    """A consumer that is polled. One task polls; other tasks may call every other method concurrently.

    Call either `subscribe`, and the members of the group share the topics' queues by rebalancing, or `assign`, and
    exactly these queues are read, regardless of other members.

        consumer = LitePullConsumer(client, "group")
        consumer.subscribe("Topic", "TagA || TagB")
        async with consumer:
            async for message in consumer: ...

    A message counts as consumed when the next one is requested (by `poll`, `async for`, `commit` or a close without an
    error). Only offsets of consumed messages are committed: after a crash messages are repeated, and none is skipped.
    """

    def __init__(self, client: Client, group: str, options: LitePullOptions | None = None) -> None:
        super().__init__(client, group, "lite pull consumer")
        self.options = options or LitePullOptions()
        self._offsets = SeekableOffsets(BrokerOffsets(self._calls), saves=self.options.auto_commit)
        self._buffer = PollBuffer(self.options.max_cached_in_all)
        self._shares = ShareOrAssignment(Shares(client, group, allocation=self.options.allocation))
        self._assignment = AssignedQueues(
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
        self._polls = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Messages being processed during an error are not consumed and are delivered again.
        await self._close(finish=kind is None)

    # Subscriptions and assignments.

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """Subscribe to messages of `topic` with one of these tags (`A || B`, `*` for all), before or after the
        start.

        With `sql`, receives messages whose properties match an SQL92 expression; the broker must have
        enablePropertyFilter=true. All members of a group must have the same subscriptions. ValueError for an illegal
        topic or tags, or after `assign`.
        """
        if self._shares.assigned is not None:
            raise ValueError("this consumer has assigned queues: create another consumer to subscribe")
        self._subscriptions[topic] = subscription_to(topic, tags, sql, now_ms())
        self._assignment.subscription_changed(topic)

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from `topic`."""
        if self._subscriptions.pop(topic, None) is not None:
            self._assignment.subscription_changed(topic)

    def assign(self, queues: Iterable[MessageQueue], tags: str = ALL) -> None:
        """Read exactly `queues`, before or after the start, regardless of other members of the group.

        ValueError for an illegal topic or tags, or after `subscribe`.
        """
        if self._shares.assigned is None and self._subscriptions:
            raise ValueError("this consumer has subscriptions: create another consumer to assign queues")
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
        self._assignment.rebalance_soon()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of a topic. Raises NoRouteError."""
        return (await self._client.route(topic)).readable

    # Messages.

    async def poll(
        self, timeout_ms: int = POLL_TIMEOUT_MS, *, max_messages: int = POLL_MESSAGES
    ) -> list[ReceivedMessage]:
        """Return the next messages: at least one, unless none arrives within `timeout_ms` or the consumer is closed.

        With `timeout_ms` 0, it returns messages that are already available. The messages of the previous poll count
        as consumed. Messages of a queue are in order, and queues take turns. Errors from brokers are logged, and the
        request is retried.
        """
        if max_messages <= 0 or timeout_ms < 0:
            raise ValueError("max_messages must be more than 0, and timeout_ms must not be negative")
        if not self._joined:
            raise ClosedError(
                "the consumer has not been started or is closed: use `async with LitePullConsumer(client, group)`"
            )
        if self._shares.assigned is None and not self._subscriptions:
            raise ValueError("there is nothing to poll: subscribe to a topic or assign queues first")
        if self._polls:
            raise RuntimeError(
                "another poll is in progress: poll from one task only, since each poll completes the messages of "
                "the previous one"
            )
        self._polls = True
        try:
            return await self._poll(timeout_ms, max_messages)
        finally:
            self._polls = False

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Iterate over messages until the consumer is closed."""
        return self._messages()

    def pause(self, *queues: MessageQueue) -> None:
        """Pause `queues` until `resume`: polls return none of their messages, and no more are pulled."""
        self._buffer.paused |= set(queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Resume `queues`."""
        self._buffer.paused -= set(queues)
        self._wake()

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The paused queues."""
        return frozenset(self._buffer.paused)

    # Start and close.

    async def start(self) -> None:
        """Join the group; messages can be polled as soon as queues are assigned.

        Raises ClosedError after a close, RefusedError if a broker rejects an SQL92 expression.
        """
        await self._check_start()
        await self._client.join(self)
        self._joined = True
        self._started_ms = now_ms()
        self._background.every(SAMPLE_INTERVAL_MS, self._tally.sample)
        self._assignment.start()

    async def close(self) -> None:
        """Commit the polled messages (with auto commit) and leave the group. A waiting poll returns no messages."""
        await self._close(finish=True)

    # Called by the client.

    def consumer_data(self) -> ConsumerData | None:
        return self._consumer_data(POLLED, MessageModel.CLUSTERING, self.options.consume_from)

    def running_info(self) -> ConsumerRunningInfo:
        """Return the current state for an administrator."""
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

    # Internal.

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
            # One at a time: messages not yet yielded when a caller leaves its loop must not count as consumed.
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
            # Also if the caller is cancelled, so that no task continues.
            self._background.cancel()
            self._assignment.clear()
            self._client.leave(self)
            self._buffer.wake()
        await unregister(self._client, self._subscriptions, consumer_group=self.group)
