"""Reader of an assigned queue: pulls messages, tracks unfinished ones, and determines the offset to commit."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

from delaymq.client.consumer.offset_store.broker_offsets import OffsetStore
from delaymq.client.consumer.queues.process_queue import CacheTotal, ProcessQueue
from delaymq.client.consumer.stats.consumer_stats import Tally
from delaymq.client.core.queue_calls import PullResult, PullStatus, QueueCalls
from delaymq.client.errors import ClientError, ClosedError, RefusedError
from delaymq.client.messages import ReceivedMessage, queue_offsets
from delaymq.client.options import ConsumeFrom, PushConsumerOptions
from delaymq.client.subscriptions import Subscription
from delaymq.clock import now_ms
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.codes import ResponseCode

FIRST_PAUSE_MS = 200
MAX_PAUSE_MS = 3_000
# Pauses after quick responses; a broker that does not hold pulls would otherwise receive thousands of them per second:
QUICK_RESPONSE_MS = 50
QUICK_RESPONSE_PAUSE_MS = 100

_PAUSES_MS: Final[dict[int, int]] = {ResponseCode.FLOW_CONTROL: 20, ResponseCode.SYSTEM_BUSY: MAX_PAUSE_MS}
"""Pauses after responses with which a broker slows down clients (flow control), as in RocketMQ's client."""

HALF_AN_HOUR_MS = 30 * 60 * 1000

_logger = logging.getLogger(__name__)


class QueueReader:
    """Reads a queue until it is dropped. `submit` receives the messages of each pull; the owner then calls `finish`.

    `is_held` may pause pulling for a reason of the owner; `wake` triggers another check. `start_at` takes precedence
    over the stored offset of the group.
    """

    def __init__(
        self,
        queue: MessageQueue,
        subscription: Subscription,
        *,
        calls: QueueCalls,
        offsets: OffsetStore,
        options: PushConsumerOptions,
        retry_topic: str,
        submit: Callable[[QueueReader, list[ReceivedMessage]], None],
        begin_after_ms: int = 0,
        is_held: Callable[[], bool] | None = None,
        start_at: int | None = None,
        tally: Tally | None = None,
        total: CacheTotal | None = None,
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.dropped = False
        self.locked = not options.ordered
        """Whether the broker has locked the queue for this member at least once (required by ordered consumers)."""
        self._locked_until_s = math.inf
        self._max_messages = options.max_cached_messages
        self._max_bytes = options.max_cached_bytes
        self._calls = calls
        self._offsets = offsets
        self._options = options
        self._retry_topic = retry_topic
        self._submit = submit
        self._begin_after_ms = begin_after_ms
        self._is_held = is_held
        self._start_at = start_at
        self._cached: ProcessQueue | None = None
        self._changed = asyncio.Event()
        self._pause_ms = 0
        self._tally = tally
        self._total = total
        self.pulled_ms = self.consumed_ms = now_ms()
        """Times of the last pull and of the last finished message; initially the start."""
        self.locked_ms = 0
        """Time of the last lock, by this machine's clock."""

    @property
    def commit_offset(self) -> int | None:
        """The next offset to consume; None while the start of the queue is not known."""
        return None if self._cached is None else self._cached.commit_offset

    @property
    def cached_messages(self) -> int:
        """The number of pulled and unfinished messages."""
        return 0 if self._cached is None else self._cached.count

    @property
    def cached_bytes(self) -> int:
        """Total size of their bodies in bytes."""
        return 0 if self._cached is None else self._cached.size_bytes

    @property
    def cached_offsets(self) -> tuple[int, int] | None:
        """The first and the last unfinished offset."""
        return None if self._cached is None else self._cached.offsets

    @property
    def may_handle(self) -> bool:
        """Whether no other member can hold the queue's lock."""
        return self.locked and asyncio.get_running_loop().time() < self._locked_until_s

    def limit(self, *, messages: int, size_bytes: int) -> None:
        """Set the cache limits."""
        self._max_messages, self._max_bytes = messages, size_bytes
        self._changed.set()

    def wake(self) -> None:
        """Check again whether pulling may continue."""
        self._changed.set()

    def drop(self) -> None:
        """Release the queue: stop pulling, and remove cached messages from the totals."""
        self.dropped = True
        if self._cached is not None:
            self._cached.release()

    def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        """Mark messages as finished."""
        if self._cached is not None:
            self._cached.finish(queue_offsets(messages))
        self.consumed_ms = now_ms()
        self._changed.set()

    def lock(self, valid_ms: int | None = None) -> None:
        """Record a lock of the queue for a limited time, until it is renewed; None: unlimited."""
        self.locked = True
        if valid_ms is not None:
            self.locked_ms = now_ms()
            self._locked_until_s = asyncio.get_running_loop().time() + valid_ms / 1000
        self._changed.set()

    async def run(self) -> None:
        """Pull until cancelled or dropped."""
        while not self.locked:
            await self._wait_for_change()
        await asyncio.sleep(self._begin_after_ms / 1000)
        cached = await self._begin()
        while not self.dropped:
            full = self._is_full(cached) or (self._total is not None and self._total.is_full)
            if full or (self._is_held is not None and self._is_held()):
                await self._wait_for_change()
                continue
            result = await self._pull(cached.pulled_to)
            if result is None:
                continue
            if result.status is PullStatus.ILLEGAL_OFFSET:
                cached = await self._correct(cached, result)
                continue
            # Offsets that were filtered out count as handled.
            cached.add(result.messages, result.next_offset)
            if result.messages:
                self._submit(self, result.messages)

    async def _begin(self) -> ProcessQueue:
        while True:
            try:
                self._cached = ProcessQueue(await self._start_offset(), self._total)
                return self._cached
            except ClosedError:
                raise
            except ClientError as error:
                await self._pause(error)

    async def _start_offset(self) -> int:
        known = await self._offsets.load(self.queue)
        if self._start_at is not None:
            return self._start_at
        if known is not None and known >= 0:
            return known
        options = self._options
        if self.queue.topic == self._retry_topic:
            return 0
        if options.consume_from is ConsumeFrom.LAST:
            return await self._calls.max_offset(self.queue)
        if options.consume_from is ConsumeFrom.FIRST:
            return await self._calls.min_offset(self.queue)
        return await self._calls.offset_at(self.queue, options.consume_timestamp_ms or now_ms() - HALF_AN_HOUR_MS)

    async def _pull(self, offset: int) -> PullResult | None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.pulled_ms = now_ms()
        try:
            result = await self._calls.pull(
                self.queue,
                offset,
                self.subscription,
                max_messages=self._options.pull_batch,
                suspend_ms=self._options.suspend_timeout_ms,
                retry_topic=self._retry_topic,
            )
        except ClosedError:
            raise
        except RefusedError as error:
            await self._pause(error, _PAUSES_MS.get(error.code, 0))
            return None
        except ClientError as error:
            await self._pause(error)
            return None
        self._pause_ms = 0
        if self._tally is not None and result.status is PullStatus.FOUND:
            self._tally.pull_took(self.queue.topic, (loop.time() - began) * 1000)
        if result.status is PullStatus.NOTHING_NEW and (loop.time() - began) * 1000 < QUICK_RESPONSE_MS:
            await asyncio.sleep(QUICK_RESPONSE_PAUSE_MS / 1000)
        return result

    async def _correct(self, cached: ProcessQueue, result: PullResult) -> ProcessQueue:
        queue = self.queue
        _logger.warning(
            "%s/%d of %s: offset %d is no longer in the queue (offsets %d to %d); continuing at %d",
            queue.topic, queue.queue_id, queue.broker_name,
            cached.pulled_to, result.min_offset, result.max_offset, result.next_offset,
        )  # fmt: skip
        while cached.count:
            await self._wait_for_change()
        self._cached = ProcessQueue(result.next_offset, self._total)
        await asyncio.sleep(FIRST_PAUSE_MS / 1000)
        return self._cached

    async def _pause(self, error: ClientError, exactly_ms: int = 0) -> None:
        if self._pause_ms == 0:
            text = "%s/%d of %s: the pull failed, retrying: %s"
            _logger.warning(text, self.queue.topic, self.queue.queue_id, self.queue.broker_name, error)
        self._pause_ms = exactly_ms or min(max(2 * self._pause_ms, FIRST_PAUSE_MS), MAX_PAUSE_MS)
        await asyncio.sleep(self._pause_ms / 1000)

    def _is_full(self, cached: ProcessQueue) -> bool:
        options = self._options
        return (
            cached.count >= self._max_messages
            or cached.size_bytes >= self._max_bytes
            or cached.span >= options.max_cached_span
        )

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
