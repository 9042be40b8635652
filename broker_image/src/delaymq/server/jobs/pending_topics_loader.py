"""Background loading, in small steps, of the topics of messages that were pending at startup."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from delaymq.clock import now_ms
from delaymq.message.names import SCHEDULE_TOPIC
from delaymq.server.log_reader import LogFiles
from delaymq.store.reader import QUEUE_ENTRY
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

AT_ONCE: Final = 64
"""Records read per step: some 1 ms in a thread, which may delay the loop as long."""
PAUSES: Final = 3
"""Ratio of pause to reading time, so that due messages and producers have priority."""
MAX_PAUSE_S: Final = 0.5
_RETRY_S: Final = 5.0

_throttled = ThrottledLogger(logging.getLogger(__name__), now_ms)


class PendingTopicsLoader:
    """Loads until all topics are known. `start` it once, `stop` it at any time."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start, if topics are unknown."""
        if not self._broker.delivery.pending_topics.complete:
            self._task = asyncio.create_task(self._run(), name="topics of pending messages")

    async def stop(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        delivery = self._broker.delivery
        with ThreadPoolExecutor(1, "pending-topics") as thread:
            while not delivery.pending_topics.complete:
                ranges = delivery.pending_topics.unknown_ranges(lambda *place: not delivery.is_settled(*place), AT_ONCE)
                for queue_id, offsets in ranges:
                    began = time.monotonic()
                    if offsets:
                        await self._try_load(thread, queue_id, list(offsets))
                    await asyncio.sleep(min(PAUSES * (time.monotonic() - began), MAX_PAUSE_S))
                if not delivery.pending_topics.complete:
                    await asyncio.sleep(_RETRY_S)

    async def _try_load(self, thread: ThreadPoolExecutor, queue_id: int, offsets: list[int]) -> None:
        """Load some topics; a failed read or a lack of threads may be temporary, so the rest is retried."""
        try:
            await self._load(thread, queue_id, offsets)
        except (OSError, RuntimeError) as error:
            _throttled.warning("cannot load the topics of pending messages, retrying: %s", error)
            await asyncio.sleep(_RETRY_S)

    async def _load(self, thread: ThreadPoolExecutor, queue_id: int, offsets: list[int]) -> None:
        broker = self._broker
        places = [self._place(queue_id, offset) for offset in offsets]
        topics = await asyncio.get_running_loop().run_in_executor(
            thread, LogFiles(broker.store, unconfirmed=True).real_topics, places
        )
        queue = broker.delivery.pending_topics.queue(queue_id)
        for offset, topic in zip(offsets, topics, strict=True):
            if not broker.delivery.is_settled(queue_id, offset):
                queue.learn(offset, topic)

    def _place(self, queue_id: int, offset: int) -> int:
        entry = self._broker.store.read_entries(SCHEDULE_TOPIC, queue_id, offset, 1)
        return int(QUEUE_ENTRY.unpack(entry)[0]) if len(entry) == QUEUE_ENTRY.size else -1
