"""Assigned queues of a group member: acquiring, reading, and releasing them with their last offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Protocol

from delaymq.client.consumer.offset_store.broker_offsets import OffsetStore
from delaymq.client.consumer.queues.process_queue import CacheTotal
from delaymq.client.consumer.queues.queue_reader import QueueReader
from delaymq.client.consumer.rebalance.queue_locks import LOCK_VALID_MS, QueueLocks
from delaymq.client.consumer.rebalance.service import ComputesShare, RebalanceService
from delaymq.client.consumer.rebalance.shares import Share
from delaymq.client.consumer.rebalance.strategies import queue_order
from delaymq.client.consumer.stats.consumer_stats import Tally
from delaymq.client.core.background import Background
from delaymq.client.core.client import Client
from delaymq.client.core.queue_calls import QueueCalls
from delaymq.client.messages import ReceivedMessage
from delaymq.client.options import PushConsumerOptions
from delaymq.client.subscriptions import Subscription
from delaymq.protocol.bodies import MessageQueue

RELEASE_MS = 300
"""Time that a member releasing a queue waits for its handlers before it commits."""
TAKE_OVER_MS = 500
"""Time that a member acquiring a queue waits for that commit: messages handled since the last one would be repeated."""


class ConsumesMessages(Protocol):
    """Receiver of the readers' messages: handlers, or a buffer that is polled."""

    def submit(self, reader: QueueReader, messages: list[ReceivedMessage]) -> None: ...
    def forget(self, reader: QueueReader) -> None: ...
    async def settle(self, readers: Collection[QueueReader], timeout_ms: int) -> bool: ...
    async def wait_until_free(self, reader: QueueReader) -> None: ...


class AssignedQueues:
    """Assigned queues. `subscriptions` belong to the consumer and may change; `subscription_changed` reports a
    change.

    `is_held` may pause pulling from a queue; its reader's `wake` triggers another check.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        options: PushConsumerOptions,
        *,
        subscriptions: dict[str, Subscription],
        retry_topic: str,
        calls: QueueCalls,
        shares: ComputesShare,
        locks: QueueLocks | None,
        offsets: OffsetStore,
        handling: ConsumesMessages,
        background: Background,
        is_held: Callable[[MessageQueue], bool] | None = None,
        tally: Tally | None = None,
        total: CacheTotal | None = None,
    ) -> None:
        self._options = options
        self._subscriptions = subscriptions
        self._retry_topic = retry_topic
        self._calls = calls
        self._locks = locks
        self._offsets = offsets
        self._handling = handling
        self._background = background
        self._is_held = is_held
        self._tally = tally
        self._total = total
        self._readers: dict[MessageQueue, tuple[QueueReader, asyncio.Task[None]]] = {}
        self._released: list[QueueReader] = []
        """Released queues whose last offsets are not yet saved."""
        self._freeing: set[MessageQueue] = set()
        """Ordered queues that were released while a handler was running: not acquired again until it has finished."""
        self._reset_to: dict[MessageQueue, int] = {}
        """Offsets requested by an administrator for the next readers, even if the broker could not be notified."""
        self._rounds = RebalanceService(client, group, options, subscriptions=subscriptions, shares=shares, takes=self)
        self.rebalance_soon = self._rounds.rebalance_soon
        """Trigger a rebalance soon."""
        self.waits_for_locks = False
        """Whether the broker has not yet locked all queues for this member."""
        self._saving = asyncio.Lock()

    @property
    def readers(self) -> list[QueueReader]:
        """The readers of the assigned queues."""
        return [reader for reader, _ in self._readers.values()]

    def offsets(self) -> dict[MessageQueue, int]:
        """Return the next offset to consume of each queue, except queues whose start is not known yet."""
        return {reader.queue: at for reader in self.readers if (at := reader.commit_offset) is not None}

    def start(self) -> None:
        """Start periodic rebalancing."""
        self._rounds.start(self._background)
        self._background.every(self._options.commit_interval_ms, self.commit)
        if self._locks is not None:
            self._background.every(self._options.lock_renewal_interval_ms, self._renew_locks)

    async def stop(self) -> None:
        """Stop acquiring and releasing queues, and stop pulling."""
        # Stopped first, so that the assignment no longer changes.
        await self._rounds.stop()
        for _, task in self._readers.values():
            task.cancel()

    async def unlock(self) -> None:
        """Release the locks of all queues, including those whose last handlers were awaited."""
        if self._locks is not None:
            await self._locks.unlock([*self._readers, *self._freeing])

    def clear(self) -> None:
        """Remove all queues."""
        self._readers.clear()

    def subscription_changed(self, topic: str) -> None:
        """Handle a changed or removed subscription of `topic`: pulling with the previous one stops."""
        for reader, task in self._readers.values():
            if reader.queue.topic == topic:
                task.cancel()
        if topic not in self._subscriptions:
            self._forget_resets(topic)
        self._rounds.reannounce()

    async def commit(self) -> None:
        """Commit the offsets of consumed messages."""
        async with self._saving:
            readers = [reader for reader in self.readers if not reader.dropped]
            readers += [reader for reader in self._released if reader.queue not in self._readers]
            await self._save(readers)

    async def reset(self, offsets: dict[MessageQueue, int]) -> None:
        """Continue at these offsets in the assigned queues."""
        known = self._readers.keys() | self._reset_to.keys()
        ours = {queue: offset for queue, offset in offsets.items() if queue in known}
        self._reset_to |= ours
        dropped = [self._readers[queue] for queue in ours.keys() & self._readers.keys()]
        for reader, _ in dropped:
            reader.dropped = True
        # After any commit in progress, and before the queues' offsets are read again.
        async with self._saving:
            await self._offsets.save(ours)
        # Readers that have replaced them meanwhile already start at the new offsets.
        await self._drop([each[0].queue for each in dropped if self._readers.get(each[0].queue) is each], commit=False)
        self.rebalance_soon()

    async def _save(self, readers: Iterable[QueueReader]) -> None:
        offsets = {reader.queue: reader.commit_offset for reader in readers}
        await self._offsets.save({queue: offset for queue, offset in offsets.items() if offset is not None})

    async def end_round(self) -> None:
        """Release the queues of unsubscribed topics, and renew the locks of the others."""
        await self._drop([queue for queue in self._readers if queue.topic not in self._subscriptions])
        await self._renew_locks()

    async def take(self, subscription: Subscription, share: Share) -> None:
        """Read exactly `share` of the subscription's topic, or nothing if the subscription has been replaced."""
        held = [queue for queue in self._readers if queue.topic == subscription.topic]
        await self._drop(
            queue
            for queue in held
            if queue not in share.queues
            or self._readers[queue][0].subscription is not subscription
            or self._readers[queue][1].done()
        )
        if self._subscriptions.get(subscription.topic) is not subscription:
            return  # the previous filter would skip messages that match the new one
        self._forget_resets(subscription.topic, share.queues)
        new = share.queues - self._readers.keys() - self._freeing
        for queue in sorted(new, key=queue_order):
            reader = QueueReader(
                queue,
                subscription,
                calls=self._calls,
                offsets=self._offsets,
                options=self._options,
                retry_topic=self._retry_topic,
                submit=self._handling.submit,
                begin_after_ms=TAKE_OVER_MS if share.has_others and self._locks is None else 0,
                is_held=None if self._is_held is None else partial(self._is_held, queue),
                start_at=self._reset_to.pop(queue, None),
                tally=self._tally,
                total=self._total,
            )
            if self._locks is None:
                reader.lock()
            self._readers[queue] = reader, self._background.spawn(reader.run())
        self._share_limits(subscription.topic)

    def _forget_resets(self, topic: str, but: Collection[MessageQueue] = ()) -> None:
        """Forget resets of queues that another member now has, which was notified as well."""
        for queue in [each for each in self._reset_to if each.topic == topic and each not in but]:
            del self._reset_to[queue]

    def _share_limits(self, topic: str) -> None:
        """Divide the cache limits of a topic among its queues."""
        readers = [reader for reader in self.readers if reader.queue.topic == topic]
        messages, size_bytes = self._options.queue_limits(len(readers))
        for reader in readers:
            reader.limit(messages=messages, size_bytes=size_bytes)

    async def _drop(self, queues: Iterable[MessageQueue], *, commit: bool = True) -> None:
        dropped: list[QueueReader] = []
        for queue in list(queues):
            reader, task = self._readers.pop(queue)
            # The queue of an already dropped reader was just reset.
            commit_it = commit and not reader.dropped
            reader.drop()
            task.cancel()
            self._handling.forget(reader)
            if commit_it:
                dropped.append(reader)
            if self._locks is not None:
                self._freeing.add(queue)
                self._background.spawn(self._unlock_when_free(reader, commit=commit_it))
        if dropped:
            self._released += dropped
            await self._handling.settle(dropped, RELEASE_MS)
            await self._save(dropped)
            self._released = [reader for reader in self._released if reader not in dropped]

    async def _unlock_when_free(self, reader: QueueReader, *, commit: bool) -> None:
        await self._handling.wait_until_free(reader)
        if commit:
            await self._save([reader])
        if self._locks is not None:
            await self._locks.unlock([reader.queue])
        self._freeing.discard(reader.queue)
        self.rebalance_soon()

    async def _renew_locks(self) -> None:
        self.waits_for_locks = False
        if self._locks is None or not self._readers:
            return
        ours, others = await self._locks.lock(list(self._readers))
        for queue in ours & self._readers.keys():
            self._readers[queue][0].lock(LOCK_VALID_MS)
        # The member that has a lost lock has made progress. When this member regains the lock, it restarts from the
        # stored offset, which it must not move back.
        lost = [queue for queue in others & self._readers.keys() if self._readers[queue][0].locked]
        await self._drop(lost, commit=False)
        if lost:
            self.rebalance_soon()
        self.waits_for_locks = not self.readers or not all(reader.locked for reader in self.readers)
