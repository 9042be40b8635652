"""Consumption with a handler: shares queues within the group, prefetches, retries failed messages and commits
offsets.
"""

from __future__ import annotations

from typing import Final, Self

from delaymq.client.consumer.group_member import GroupMember
from delaymq.client.consumer.handlers.consume_service import ConsumeService
from delaymq.client.consumer.handlers.direct_consuming import consume_directly
from delaymq.client.consumer.handlers.retries import Retries
from delaymq.client.consumer.handlers.types import BatchHandler, Handle, Handler, of_batch, of_one
from delaymq.client.consumer.offset_store.broker_offsets import BrokerOffsets
from delaymq.client.consumer.offset_store.file_offsets import FileOffsets, default_path
from delaymq.client.consumer.queues.assigned_queues import AssignedQueues
from delaymq.client.consumer.queues.process_queue import CacheTotal
from delaymq.client.consumer.rebalance.queue_locks import QueueLocks
from delaymq.client.consumer.rebalance.shares import Shares
from delaymq.client.consumer.running_info import queue_info, running_info
from delaymq.client.consumer.stats.consumer_stats import ConsumerStats, QueueStats
from delaymq.client.consumer.stats.rates import SAMPLE_INTERVAL_MS
from delaymq.client.core.client import Client
from delaymq.client.core.unregister import unregister
from delaymq.client.messages import ReceivedMessage
from delaymq.client.options import MessageModel, PushConsumerOptions
from delaymq.client.subscriptions import ALL, subscription_to
from delaymq.client.trace.tracer import Tracer
from delaymq.clock import now_ms
from delaymq.message.names import retry_topic
from delaymq.protocol.bodies import ConsumeDirectlyResult, ConsumerData, ConsumerRunningInfo, MessageQueue

PUSHED: Final = "CONSUME_PASSIVELY"


class _GroupConsumer(GroupMember):
    """Base of consumers with a handler."""

    def __init__(self, client: Client, group: str, handle: Handle, options: PushConsumerOptions) -> None:
        super().__init__(client, group, "consumer")
        self.options = options
        clustering = options.model is MessageModel.CLUSTERING
        self._file = None if clustering else FileOffsets()
        self._offsets = self._file or BrokerOffsets(self._calls)
        retries = Retries(client, group, options.retry_delay_level, options.max_reconsume_times) if clustering else None
        self._tracer = Tracer(client, group, "CONSUME", options.trace_topic) if options.enable_trace else None
        self._handling = ConsumeService(handle, retries, options, self._tally, self._tracer)
        self.retry_topic = retry_topic(group) if clustering else ""
        self._assignment = AssignedQueues(
            client,
            group,
            options,
            subscriptions=self._subscriptions,
            retry_topic=self.retry_topic,
            calls=self._calls,
            shares=Shares(client, group, clustering=clustering, allocation=options.allocation),
            locks=QueueLocks(client, group) if clustering and options.ordered else None,
            offsets=self._offsets,
            handling=self._handling,
            background=self._background,
            tally=self._tally,
            total=CacheTotal(options.max_cached_messages_in_all, options.max_cached_bytes_in_all, self._wake),
        )
        self._handle = handle
        if clustering:
            self.subscribe(self.retry_topic)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """Subscribe to messages of `topic` with one of these tags (`TagA || TagB`, `*` for all), before or after the
        start.

        With `sql`, receives messages whose properties match an SQL92 expression; the broker must have
        enablePropertyFilter=true. All members of a group must have the same subscriptions. ValueError for an illegal
        topic or tags.
        """
        self._subscriptions[topic] = subscription_to(topic, tags, sql, now_ms())
        if topic != self.retry_topic:  # its messages count for their original topics
            self._tally.add_topic(topic)
        self._assignment.subscription_changed(topic)

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from `topic`."""
        self._subscriptions.pop(topic, None)
        self._assignment.subscription_changed(topic)

    def stats(self) -> ConsumerStats:
        """Return the current statistics."""
        queues = tuple(
            QueueStats(
                queue=reader.queue,
                next_offset=reader.commit_offset,
                cached_messages=reader.cached_messages,
                cached_bytes=reader.cached_bytes,
            )
            for reader in self._assignment.readers
        )
        return ConsumerStats(topics=self._tally.topics(), queues=queues, running=self._handling.running)

    async def start(self) -> None:
        """Join the group; messages arrive as soon as queues are assigned.

        Raises ClosedError after a close, OffsetsInUseError if another broadcasting consumer uses the same offset
        file, RefusedError if a broker rejects an SQL92 expression.
        """
        await self._check_start()
        if self._file is not None:
            instance = self._client.options.instance_name
            path = self.options.offsets_path or default_path(self._client.client_id, instance, self.group)
            await self._file.open(path)
        try:
            await self._client.join(self)
        except BaseException:
            self._close_file()
            raise
        self._joined = True
        self._started_ms = now_ms()
        if self._tracer is not None:
            self._tracer.start()
        self._handling.start(self._background)
        self._background.every(SAMPLE_INTERVAL_MS, self._tally.sample)
        self._assignment.start()

    async def close(self) -> None:
        """Wait for running handlers, commit offsets and leave the group."""
        if not self._joined:
            return
        self._joined = False
        self._closed = True
        try:
            await self._assignment.stop()
            await self._handling.stop(self.options.close_timeout_ms)
            await self._background.close()
            if self._tracer is not None:
                await self._tracer.close()
            await self.commit()
            await self._assignment.unlock()
        finally:
            # Also if the caller is cancelled, so that no task continues.
            self._background.cancel()
            if self._tracer is not None:
                self._tracer.cancel()
            self._assignment.clear()
            self._close_file()
            self._client.leave(self)
        await unregister(self._client, self._subscriptions, consumer_group=self.group)

    async def commit(self) -> None:
        """Commit the offsets immediately; otherwise they are committed every commit_interval_ms and at close."""
        await self._assignment.commit()

    def _wake(self) -> None:
        for reader in self._assignment.readers:
            reader.wake()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()

    # Called by the client.

    def consumer_data(self) -> ConsumerData | None:
        return self._consumer_data(PUSHED, self.options.model, self.options.consume_from)

    def reset_offsets(self, offsets: dict[MessageQueue, int]) -> None:
        """Continue at these offsets, as requested by an administrator."""
        self._background.spawn(self._assignment.reset(offsets))

    def running_info(self) -> ConsumerRunningInfo:
        """Return the current state for an administrator."""
        ordered = self.options.ordered
        return running_info(
            name_servers=self._client.name_servers,
            consume_type=PUSHED,
            started_ms=self._started_ms,
            ordered=ordered,
            concurrency=self.options.concurrency,
            options=self.options,
            subscriptions=self._subscriptions.values(),
            queues={
                reader.queue: queue_info(reader, self._handling.at_work(reader), ordered=ordered)
                for reader in self._assignment.readers
            },
            statuses=self._tally.statuses(),
        )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Call the handler with a message that an administrator selected; it is neither retried nor committed."""
        options = self.options
        return await consume_directly(
            self._handle, message, ordered=options.ordered, timeout_ms=options.consume_timeout_ms
        )


class PushConsumer(_GroupConsumer):
    """A consumer whose `handler` receives each message of the subscribed topics, at least once per group.

    The handler is a coroutine function. If it returns, the message is consumed. If it raises or returns
    Outcome.RETRY, the message is redelivered later (clustering) or is dropped with a log line (broadcasting).

        consumer = PushConsumer(client, "group", handler)
        consumer.subscribe("Topic", "TagA || TagB")
        async with consumer: ...
    """

    def __init__(
        self, client: Client, group: str, handler: Handler, options: PushConsumerOptions | None = None
    ) -> None:
        options = options or PushConsumerOptions()
        if options.batch > 1:
            raise ValueError(
                f"batch={options.batch} requires a BatchPushConsumer, whose handler receives lists of messages"
            )
        super().__init__(client, group, of_one(handler), options)


class BatchPushConsumer(_GroupConsumer):
    """A PushConsumer whose handler receives a list of 1 to `options.batch` messages of one queue, in order.

    If it returns None, all are consumed. If it returns a number n, the first n are consumed and the others are
    redelivered. If it raises or returns Outcome.RETRY, all are redelivered.
    """

    def __init__(self, client: Client, group: str, handler: BatchHandler, options: PushConsumerOptions) -> None:
        super().__init__(client, group, of_batch(handler), options)
