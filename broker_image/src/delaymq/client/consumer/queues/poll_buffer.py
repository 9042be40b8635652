"""Buffer of prefetched messages for polls, limited over all queues and read in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection

from delaymq.client.consumer.queues.queue_reader import QueueReader
from delaymq.client.messages import ReceivedMessage
from delaymq.protocol.bodies import MessageQueue


class PollBuffer:
    """Takes the place of a push consumer's handlers: readers add messages, `take` returns them to the caller.

    Messages that were taken count as consumed when `finish_taken` is called: only then may their offsets be
    committed.
    """

    def __init__(self, max_messages: int) -> None:
        self._max_messages = max_messages
        self._ready: dict[QueueReader, deque[ReceivedMessage]] = {}
        """Readers with messages, rotated after each turn."""
        self._taken: list[tuple[QueueReader, ReceivedMessage]] = []
        self._count = 0
        self.paused: set[MessageQueue] = set()
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of pulled and unfinished messages."""
        return self._count + len(self._taken)

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached. Messages in paused queues do not count, so that other queues
        continue.
        """
        if len(self) < self._max_messages or not self.paused:
            return len(self) >= self._max_messages  # checked by each of thousands of readers once space is free
        waits_paused = sum(len(ready) for reader, ready in self._ready.items() if reader.queue in self.paused)
        return len(self) - waits_paused >= self._max_messages

    # Called by the readers and their owner.

    def submit(self, reader: QueueReader, messages: list[ReceivedMessage]) -> None:
        """Accept messages; return immediately."""
        if reader.dropped:
            return
        self._ready.setdefault(reader, deque()).extend(messages)
        self._count += len(messages)
        self._arrived.set()

    def forget(self, reader: QueueReader) -> None:
        """Discard the messages of a dropped reader, which belong to the queue's next member."""
        self._count -= len(self._ready.pop(reader, ()))
        self._taken = [(owner, message) for owner, message in self._taken if owner is not reader]

    async def settle(self, readers: Collection[QueueReader], timeout_ms: int) -> bool:
        """Do nothing: no handler is running here."""
        return True

    async def wait_until_free(self, reader: QueueReader) -> None:
        """Do nothing: no handler is running here."""

    # Called by polls.

    def finish_taken(self) -> set[QueueReader]:
        """Finish all taken messages and return their readers."""
        taken: dict[QueueReader, list[ReceivedMessage]] = {}
        for reader, message in self._taken:
            taken.setdefault(reader, []).append(message)
        self._taken = []
        for reader, messages in taken.items():
            reader.finish(messages)
        return set(taken)

    def take(self, max_messages: int) -> list[ReceivedMessage]:
        """Return up to `max_messages` messages: those of the first queue in turn, then of the next, each in order."""
        messages: list[ReceivedMessage] = []
        for reader in [each for each in self._ready if each.queue not in self.paused]:
            ready = self._ready.pop(reader)
            while ready and len(messages) < max_messages:
                message = ready.popleft()
                messages.append(message)
                self._taken.append((reader, message))
            if ready:
                self._ready[reader] = ready
            if len(messages) == max_messages:
                break
        self._count -= len(messages)
        return messages

    async def wait(self) -> None:
        """Wait until messages may have arrived, or a queue is resumed."""
        self._arrived.clear()
        await self._arrived.wait()

    def wake(self) -> None:
        """Wake waiting tasks for another check."""
        self._arrived.set()
