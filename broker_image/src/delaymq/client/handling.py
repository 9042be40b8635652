"""Runs handlers: so many at a time, in order where it is asked for, and decides what becomes of failures."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from enum import Enum

from delaymq.client.background import Background
from delaymq.client.messages import ReceivedMessage
from delaymq.client.options import PushConsumerOptions
from delaymq.client.queue_reader import QueueReader
from delaymq.client.retries import Retries

_logger = logging.getLogger(__name__)


class Outcome(Enum):
    """What a handler says about a message; None counts as DONE."""

    DONE = "done"
    RETRY = "retry"


Handler = Callable[[ReceivedMessage], Awaitable[Outcome | None]]


class Handling:
    """Workers that share one queue of messages. Its length is bounded by what the readers may cache.

    Ordered: a message waits until the one before it in its queue is done, so each reader has at most one under way.
    """

    def __init__(self, handler: Handler, retries: Retries | None, options: PushConsumerOptions) -> None:
        self._handler = handler
        self._retries = retries
        self._options = options
        self._ready: asyncio.Queue[tuple[QueueReader, ReceivedMessage]] = asyncio.Queue()
        self._waiting: dict[QueueReader, list[ReceivedMessage]] = {}
        self._busy: dict[QueueReader, asyncio.Event] = {}
        self._running: Counter[QueueReader] = Counter()
        self._progress = asyncio.Event()
        self._stopping = False

    def start(self, background: Background) -> None:
        """Starts the workers."""
        for _ in range(self._options.concurrency):
            background.spawn(self._work())

    def hand_over(self, reader: QueueReader, message: ReceivedMessage) -> None:
        """Takes a message in; returns at once."""
        if self._options.ordered:
            if reader in self._busy:
                self._waiting.setdefault(reader, []).append(message)
                return
            self._busy[reader] = asyncio.Event()
        self._ready.put_nowait((reader, message))

    async def settle(self, readers: Collection[QueueReader], timeout_ms: int) -> bool:
        """Waits until no handler runs for `readers`, at most `timeout_ms`; whether that is so."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while any(self._running[reader] for reader in readers):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return False
        return True

    async def wait_until_free(self, reader: QueueReader) -> None:
        """Returns when no message of an ordered queue is under way."""
        event = self._busy.get(reader)
        if event is not None:
            await event.wait()

    def forget(self, reader: QueueReader) -> None:
        """The reader was dropped: what waits for it is not handled here any more."""
        self._waiting.pop(reader, None)

    async def stop(self, timeout_ms: int) -> None:
        """Begins no further message and waits for those under way, at most `timeout_ms`."""
        self._stopping = True
        if not await self.settle(list(self._running), timeout_ms):
            running = self._running.total()
            _logger.warning("%d handlers still ran after %d ms and are cancelled", running, timeout_ms)

    async def _work(self) -> None:
        while True:
            reader, message = await self._ready.get()
            if reader.dropped or self._stopping:
                self._release(reader)
                continue
            self._running[reader] += 1
            try:
                if self._options.ordered:
                    await self._handle_in_order(reader, message)
                else:
                    await self._handle(reader, message)
            except Exception:
                _logger.exception("message %s is tried again: what follows its handler failed", message.message_id)
                self._again(reader, message)
            finally:
                self._running[reader] -= 1
                if not self._running[reader]:
                    del self._running[reader]
                self._progress.set()

    async def _handle(self, reader: QueueReader, message: ReceivedMessage) -> None:
        if await self._succeeds(message):
            reader.finish(message)
        elif self._retries is None:
            _logger.warning("message %s is dropped: in broadcasting nothing comes again", message.message_id)
            reader.finish(message)
        elif reader.dropped:
            return  # whoever has the queue now gets it
        elif await self._retries.send_back(message):
            reader.finish(message)
        else:
            self._again(reader, message)

    async def _handle_in_order(self, reader: QueueReader, message: ReceivedMessage) -> None:
        attempts = 0
        while not await self._succeeds(message):
            attempts += 1
            if self._retries is not None and 0 <= self._options.max_reconsume_times <= attempts:
                if await self._retries.send_back(message, to_dead_letters=True):
                    break
            elif self._retries is None and 0 <= self._options.max_reconsume_times <= attempts:
                _logger.warning("message %s is dropped after %d attempts", message.message_id, attempts)
                break
            await asyncio.sleep(self._options.local_retry_ms / 1000)
            if reader.dropped or self._stopping:
                self._release(reader)
                return
        reader.finish(message)
        waiting = self._waiting.get(reader)
        if waiting and not reader.dropped:
            self._ready.put_nowait((reader, waiting.pop(0)))
        else:
            self._release(reader)

    def _again(self, reader: QueueReader, message: ReceivedMessage) -> None:
        pause_s = self._options.local_retry_ms / 1000
        asyncio.get_running_loop().call_later(pause_s, self._ready.put_nowait, (reader, message))

    def _release(self, reader: QueueReader) -> None:
        event = self._busy.pop(reader, None)
        if event is not None:
            event.set()

    async def _succeeds(self, message: ReceivedMessage) -> bool:
        try:
            outcome = await self._handler(message)
        except Exception:
            _logger.warning("the handler failed on message %s", message.message_id, exc_info=True)
            return False
        return outcome is not Outcome.RETRY
