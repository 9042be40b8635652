"""Execution of handlers with limited concurrency, in order if requested, and treatment of failures."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial

from delaymq.client.consumer.handlers.calls import HandlerCalls, Run
from delaymq.client.consumer.handlers.retries import Retries, shown
from delaymq.client.consumer.handlers.timeout import HandlerTimeout
from delaymq.client.consumer.handlers.types import Handle, Retry, Suspend
from delaymq.client.consumer.queues.queue_reader import QueueReader
from delaymq.client.consumer.stats.consumer_stats import Tally
from delaymq.client.core.background import Background
from delaymq.client.messages import ReceivedMessage, next_attempt
from delaymq.client.options import PushConsumerOptions
from delaymq.client.trace.tracer import Tracer

LOCK_PAUSE_MS = 100
"""Interval between checks whether an ordered queue's lock was renewed."""

_logger = logging.getLogger(__name__)


class ConsumeService:
    """Workers that process queues in turn, so that no queue waits for another's backlog.

    The readers' cache limits bound the waiting messages. Ordered: a queue has at most one running handler, and
    continues only after its messages are consumed.
    """

    def __init__(
        self,
        handle: Handle,
        retries: Retries | None,
        options: PushConsumerOptions,
        tally: Tally,
        tracer: Tracer | None = None,
    ) -> None:
        self._calls = HandlerCalls(handle, tally, tracer, options.consume_timeout_ms)
        self._retries = retries
        self._options = options
        self._tally = tally
        self._waiting: dict[QueueReader, deque[ReceivedMessage]] = {}
        self._ready: asyncio.Queue[QueueReader] = asyncio.Queue()
        self._is_ready: set[QueueReader] = set()
        self._busy: dict[QueueReader, asyncio.Event] = {}
        """Ordered queues with a running handler, or whose failed message waits for a retry."""
        self._runs: set[Run] = set()
        self._overdue = HandlerTimeout(self._runs, retries, options, tally)
        self._timers: set[asyncio.TimerHandle] = set()
        self._progress = asyncio.Event()
        self._stopping = False

    @property
    def running(self) -> int:
        """The number of running handlers."""
        return len(self._runs)

    def at_work(self, reader: QueueReader) -> list[ReceivedMessage]:
        """Return the queue's messages that handlers are processing."""
        return [message for run in self._runs if run.reader is reader for message in run.messages]

    def start(self, background: Background) -> None:
        """Start the workers."""
        for _ in range(self._options.concurrency):
            background.spawn(self._work())
        self._overdue.start(background)

    def submit(self, reader: QueueReader, messages: list[ReceivedMessage]) -> None:
        """Accept messages; return immediately."""
        self._tally.pulled(messages)
        self._waiting.setdefault(reader, deque()).extend(messages)
        self._make_ready(reader)

    async def settle(self, readers: Collection[QueueReader] | None, timeout_ms: int) -> bool:
        """Wait until no handler runs for `readers` (None: all), at most `timeout_ms`; return whether none runs."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while any(readers is None or run.reader in readers for run in self._runs):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return False
        return True

    async def wait_until_free(self, reader: QueueReader) -> None:
        """Wait until no message of an ordered queue is being processed."""
        event = self._busy.get(reader)
        if event is not None:
            await event.wait()

    def forget(self, reader: QueueReader) -> None:
        """Discard the waiting messages of a dropped reader."""
        self._waiting.pop(reader, None)

    async def stop(self, timeout_ms: int) -> None:
        """Start no more handlers, and wait for running ones, at most `timeout_ms`."""
        self._stopping = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._waiting.clear()
        if not await self.settle(None, timeout_ms):
            _logger.warning("%d handlers were still running after %d ms and are cancelled", len(self._runs), timeout_ms)

    def _make_ready(self, reader: QueueReader) -> None:
        if reader not in self._is_ready and reader not in self._busy and self._waiting.get(reader):
            self._is_ready.add(reader)
            self._ready.put_nowait(reader)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            reader = await self._ready.get()
            self._is_ready.discard(reader)
            if reader.dropped:
                self.forget(reader)
                continue
            if not reader.may_handle:
                self._later(LOCK_PAUSE_MS, partial(self._make_ready, reader))
                continue
            run = Run(reader, self._next_messages(reader), loop.time())
            if not run.messages:
                continue
            self._runs.add(run)
            try:
                await (self._run_in_order if self._options.ordered else self._run)(run)
            except Exception:
                _logger.exception(
                    "%s will be retried: an error occurred after its handler had finished", shown(run.messages[0])
                )
                self._retry_later(reader, [message for _, message in run.kept], self._options.unsent_retry_ms)
            finally:
                self._runs.discard(run)
                self._progress.set()

    def _next_messages(self, reader: QueueReader) -> list[ReceivedMessage]:
        waiting = self._waiting.get(reader)
        if not waiting:
            return []
        messages = [waiting.popleft() for _ in range(min(self._options.batch, len(waiting)))]
        if self._options.ordered:
            self._busy[reader] = asyncio.Event()
        elif waiting:
            self._make_ready(reader)
        return messages

    async def _run(self, run: Run) -> None:
        done = await self._calls.done(run)
        if done == len(run.messages) and not run.abandoned:
            run.reader.finish(run.messages)
            return
        unsent: list[ReceivedMessage] = []
        level = run.again.delay_level if isinstance(run.again, Retry) else 0
        for place, message in run.kept:
            if place < done:
                run.reader.finish([message])
            elif self._retries is None:
                _logger.warning("%s is dropped: broadcasting consumers do not retry", shown(message))
                run.reader.finish([message])
            elif run.reader.dropped:
                continue  # the queue's next member receives it
            elif await self._retries.send_back(message, delay_level=level):
                run.reader.finish([message])
            else:
                unsent.append(message)
        if unsent:
            self._retry_later(run.reader, unsent, self._options.unsent_retry_ms)

    async def _run_in_order(self, run: Run) -> None:
        done = await self._calls.done(run)
        failed: list[ReceivedMessage] = []
        for place, message in run.kept:
            if place < done or (not run.reader.dropped and await self._is_last_attempt(message)):
                run.reader.finish([message])
            else:
                failed.append(message)
        if failed:
            pause_ms = run.again.pause_ms if isinstance(run.again, Suspend) else self._options.local_retry_ms
            self._retry_later(run.reader, failed, pause_ms)
        else:
            self._free(run.reader)
            self._make_ready(run.reader)

    async def _is_last_attempt(self, message: ReceivedMessage) -> bool:
        """Return whether a failed message of an ordered queue had its last attempt and was sent to the dead-letter
        queue.
        """
        if not 0 <= self._options.max_reconsume_times <= message.reconsume_times:
            return False
        if self._retries is None:
            _logger.warning("%s is dropped after %d attempts", shown(message), message.reconsume_times + 1)
            return True
        return await self._retries.send_back(message, to_dead_letters=True)

    def _retry_later(self, reader: QueueReader, messages: Sequence[ReceivedMessage], pause_ms: int) -> None:
        """Return messages to the front of their reader after a pause."""
        next_time = [next_attempt(message) for message in messages]

        def put_back() -> None:
            self._free(reader)
            if not reader.dropped:
                self._waiting.setdefault(reader, deque()).extendleft(reversed(next_time))
                self._make_ready(reader)

        if reader.dropped or self._stopping:
            self._free(reader)
        else:
            self._later(pause_ms, put_back)

    def _free(self, reader: QueueReader) -> None:
        event = self._busy.pop(reader, None)
        if event is not None:
            event.set()

    def _later(self, pause_ms: int, work: Callable[[], None]) -> None:
        def ring() -> None:
            self._timers.discard(timer)
            work()

        if not self._stopping:
            timer = asyncio.get_running_loop().call_later(pause_ms / 1000, ring)
            self._timers.add(timer)
