"""Consuming with a handler: shares queues within its group, pulls ahead, retries what failed, commits what is done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from delaymq.client.background import Background
from delaymq.client.client import Client
from delaymq.client.errors import ClientError, ClosedError, NoRouteError
from delaymq.client.handling import Handler, Handling
from delaymq.client.offsets import BrokerOffsets, FileOffsets, Offsets
from delaymq.client.options import MessageModel, PushConsumerOptions
from delaymq.client.producer import unregister
from delaymq.client.queue_calls import QueueCalls
from delaymq.client.queue_locks import QueueLocks
from delaymq.client.queue_reader import QueueReader
from delaymq.client.rebalance import Share, Shares
from delaymq.client.retries import Retries
from delaymq.client.subscriptions import ALL, Subscription
from delaymq.clock import now_ms
from delaymq.message.names import group_problem, retry_topic
from delaymq.protocol.bodies import ConsumerData, MessageQueue, ProducerData

HAND_OVER_MS = 300
"""How long a member that gives a queue up waits for its handlers before it commits."""
TAKE_OVER_MS = 500
"""How long a member that gets a queue waits for that commit: what was handled since the last one would come again."""
UNSETTLED_PAUSE_MS = 1_000
"""Until the next try while a topic has no route or brokers do not list this member yet."""
GATHER_CHANGES_MS = 50
"""Members come and go in bursts; each change alone would move queues to and fro."""

_logger = logging.getLogger(__name__)


class PushConsumer:
    """A member of a consumer group: `handler` gets each message of the subscribed topics, at least once in the group.

    The handler is a coroutine function. When it returns, the message is done. When it raises or returns
    Outcome.RETRY, the message comes again later (clustering) or is dropped with a log line (broadcasting).

        consumer = PushConsumer(client, "group", handler)
        consumer.subscribe("Topic", "TagA || TagB")
        async with consumer: ...
    """

    def __init__(
        self, client: Client, group: str, handler: Handler, options: PushConsumerOptions | None = None
    ) -> None:
        problem = group_problem(group)
        if problem is not None:
            raise ValueError(problem)
        self.group = group
        self.options = options or PushConsumerOptions()
        self._client = client
        self._calls = QueueCalls(client, group)
        self._clustering = self.options.model is MessageModel.CLUSTERING
        self._offsets: Offsets = (
            BrokerOffsets(self._calls) if self._clustering else FileOffsets(self.options.offsets_path)
        )
        self._shares = Shares(client, group, clustering=self._clustering)
        self._locks = QueueLocks(client, group) if self._clustering and self.options.ordered else None
        retries = Retries(client, group, self.options.retry_delay_level, self.options.max_reconsume_times)
        self._handling = Handling(handler, retries if self._clustering else None, self.options)
        self._background = Background(f"consumer {group}")
        self._subscriptions: dict[str, Subscription] = {}
        self._readers: dict[MessageQueue, tuple[QueueReader, asyncio.Task[None]]] = {}
        self._given_up: list[QueueReader] = []
        """Dropped, and their last offsets not yet saved."""
        self._rebalancing: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._saving = asyncio.Lock()
        self._unannounced = True
        self._joined = False
        self._retry_topic = retry_topic(group) if self._clustering else ""
        if self._clustering:
            self.subscribe(self._retry_topic)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def subscribe(self, topic: str, tags: str = ALL) -> None:
        """Takes messages of `topic` with one of these tags (`TagA || TagB`, `*` for all), before or after the start.

        All members of a group subscribe to the same. ValueError for an illegal topic or tags.
        """
        self._subscriptions[topic] = Subscription(topic, tags, now_ms())
        self._unannounced = True
        self._changed.set()

    def unsubscribe(self, topic: str) -> None:
        """Takes no more messages of `topic`."""
        self._subscriptions.pop(topic, None)
        self._unannounced = True
        self._changed.set()

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that this member reads now."""
        return list(self._readers)

    async def start(self) -> None:
        """Joins the group; messages come as soon as it has its share of the queues."""
        await self._client.join(self)
        self._joined = True
        self._handling.start(self._background)
        self._rebalancing = self._background.spawn(self._rebalance_forever())
        self._background.every(self.options.commit_interval_ms, self.commit)
        if self._locks is not None:
            self._background.every(QueueLocks.RENEW_INTERVAL_MS, self._renew_locks)

    async def close(self) -> None:
        """Waits for handlers that run, commits what is done and leaves the group."""
        if not self._joined:
            return
        self._joined = False
        try:
            if self._rebalancing is not None:
                # First of all, so that the queues and what is done in them stay as they are.
                self._rebalancing.cancel()
                await asyncio.wait([self._rebalancing])
            for _, task in self._readers.values():
                task.cancel()
            await self._handling.stop(self.options.close_timeout_ms)
            await self._background.close()
            await self.commit()
            if self._locks is not None:
                await self._locks.unlock(list(self._readers))
        finally:
            # Also when the caller is cancelled: nothing of it goes on.
            self._background.cancel()
            self._readers.clear()
            self._client.leave(self)
        await unregister(self._client, self._subscriptions, consumer_group=self.group)

    async def commit(self) -> None:
        """Saves the offsets now; it happens by itself every commit_interval_ms and at close."""
        async with self._saving:
            readers = [reader for reader, _ in self._readers.values() if not reader.dropped]
            readers += [reader for reader in self._given_up if reader.queue not in self._readers]
            offsets = {reader.queue: reader.commit_offset for reader in readers}
            await self._offsets.save({queue: offset for queue, offset in offsets.items() if offset is not None})

    # What the client asks of its members.

    def producer_data(self) -> ProducerData | None:
        return None

    def consumer_data(self) -> ConsumerData | None:
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY",
            message_model=self.options.model.value,
            consume_from_where=self.options.consume_from.value,
            subscription_data_set=[each.data() for each in self._subscriptions.values()],
        )

    def topics(self) -> Iterable[str]:
        return list(self._subscriptions)

    def membership_changed(self) -> None:
        """Members, routes or a connection changed: the shares are worked out again."""
        self._offsets.forget_saved()
        self._changed.set()

    def reset_offsets(self, offsets: dict[MessageQueue, int]) -> None:
        """Goes on at these offsets, as an administrator wants it."""
        ours = {queue: offset for queue, offset in offsets.items() if queue in self._readers}
        for queue in ours:
            self._readers[queue][0].dropped = True
        self._background.spawn(self._reset(ours))

    # Inside.

    async def _rebalance_forever(self) -> None:
        while True:
            self._changed.clear()
            try:
                settled = await self._rebalance()
            except Exception:
                _logger.exception("the shares of %s could not be worked out, it is tried again", self.group)
                settled = False
            pause_ms = self.options.rebalance_interval_ms if settled else UNSETTLED_PAUSE_MS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await self._changed.wait()
            await asyncio.sleep(GATHER_CHANGES_MS / 1000)

    async def _rebalance(self) -> bool:
        """Whether every topic's share is known."""
        await self._announce()
        settled = True
        for topic in [*self._subscriptions]:
            subscription = self._subscriptions.get(topic)
            if subscription is None:
                continue
            try:
                share = await self._shares.share(topic)
            except ClosedError:
                return True
            except ClientError as error:
                _logger.log(
                    logging.DEBUG if isinstance(error, NoRouteError) else logging.WARNING,
                    "the share of %s is not known: %s", topic, error,
                )  # fmt: skip
                self._client.refresh_soon(topic)
                settled = False
                continue
            if share is None:
                self._unannounced = True
                settled = False
                continue
            await self._take(subscription, share)
        gone = [queue for queue in self._readers if queue.topic not in self._subscriptions]
        await self._drop(gone)
        await self._renew_locks()
        return settled

    async def _announce(self) -> None:
        """Tells brokers what is subscribed: without it they neither list this member nor make its retry topic."""
        if not self._unannounced:
            return
        self._unannounced = False
        for topic in [*self._subscriptions]:
            try:
                await self._client.route(topic)
            except ClientError:
                continue
        await self._client.heartbeat()

    async def _take(self, subscription: Subscription, share: Share) -> None:
        held = [queue for queue in self._readers if queue.topic == subscription.topic]
        await self._drop(
            queue
            for queue in held
            if queue not in share.queues
            or self._readers[queue][0].subscription is not subscription
            or self._readers[queue][1].done()
        )
        for queue in sorted(share.queues - self._readers.keys(), key=lambda each: (each.broker_name, each.queue_id)):
            reader = QueueReader(
                queue,
                subscription,
                calls=self._calls,
                offsets=self._offsets,
                options=self.options,
                retry_topic=self._retry_topic,
                hand_over=self._handling.hand_over,
                begin_after_ms=TAKE_OVER_MS if share.has_others and self._locks is None else 0,
            )
            if self._locks is None:
                reader.lock()
            self._readers[queue] = reader, self._background.spawn(reader.run())

    async def _drop(self, queues: Iterable[MessageQueue], *, commit: bool = True) -> None:
        dropped: list[QueueReader] = []
        for queue in list(queues):
            reader, task = self._readers.pop(queue)
            reader.dropped = True
            task.cancel()
            self._handling.forget(reader)
            dropped.append(reader)
            if self._locks is not None:
                self._background.spawn(self._unlock_when_free(reader))
        if commit and dropped:
            self._given_up += dropped
            await self._handling.settle(dropped, HAND_OVER_MS)
            offsets = {reader.queue: reader.commit_offset for reader in dropped}
            await self._offsets.save({queue: offset for queue, offset in offsets.items() if offset is not None})
            self._given_up = [reader for reader in self._given_up if reader not in dropped]

    async def _unlock_when_free(self, reader: QueueReader) -> None:
        await self._handling.wait_until_free(reader)
        if reader.commit_offset is not None:
            await self._offsets.save({reader.queue: reader.commit_offset})
        if self._locks is not None and reader.queue not in self._readers:
            await self._locks.unlock([reader.queue])

    async def _renew_locks(self) -> None:
        if self._locks is None or not self._readers:
            return
        ours, others = await self._locks.lock(list(self._readers))
        for queue in ours & self._readers.keys():
            self._readers[queue][0].lock()
        # A lock that was lost: whoever has it has moved on, so this member begins anew when it gets it back.
        await self._drop([queue for queue in others & self._readers.keys() if self._readers[queue][0].locked])
        if others:
            asyncio.get_running_loop().call_later(UNSETTLED_PAUSE_MS / 1000, self._changed.set)

    async def _reset(self, offsets: dict[MessageQueue, int]) -> None:
        # Not before a commit that is under way, and before anybody reads the queue's offset anew.
        async with self._saving:
            await self._offsets.save(offsets)
        await self._drop([queue for queue in offsets if queue in self._readers], commit=False)
        self._changed.set()
