"""What was pulled ahead for polls: bounded over all queues, and handed out queue by queue in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection

from delaymq.client.consumer.queues.queue_reader import QueueReader
from delaymq.client.messages import ReceivedMessage
from delaymq.protocol.bodies import MessageQueue


class PollBuffer:
    """Stands where a push consumer has its handlers: readers hand over to it, `take` gives to the caller.

    What was taken counts as done when `finish_taken` is called, and not before: only then may its offset be committed.
    """

    def __init__(self, max_messages: int) -> None:
        self._max_messages = max_messages
        self._ready: dict[QueueReader, deque[ReceivedMessage]] = {}
        """Readers with messages; whoever gave goes to the end."""
        self._taken: list[tuple[QueueReader, ReceivedMessage]] = []
        self._count = 0
        self.paused: set[MessageQueue] = set()
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        """Messages that were pulled and not finished."""
        return self._count + len(self._taken)

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be pulled. What waits in paused queues does not count: others must go on."""
        if len(self) < self._max_messages or not self.paused:
            return len(self) >= self._max_messages  # each of thousands of readers asks when there is room again
        waits_paused = sum(len(ready) for reader, ready in self._ready.items() if reader.queue in self.paused)
        return len(self) - waits_paused >= self._max_messages

    # What readers and their owner call.

    def hand_over(self, reader: QueueReader, message: ReceivedMessage) -> None:
        """Takes a message in; returns at once."""
        if reader.dropped:
            return
        self._ready.setdefault(reader, deque()).append(message)
        self._count += 1
        self._arrived.set()

    def forget(self, reader: QueueReader) -> None:
        """The reader was dropped: its messages are for whoever has the queue now."""
        self._count -= len(self._ready.pop(reader, ()))
        self._taken = [(owner, message) for owner, message in self._taken if owner is not reader]

    async def settle(self, readers: Collection[QueueReader], timeout_ms: int) -> bool:
        """Nothing runs here that could be waited for."""
        return True

    async def wait_until_free(self, reader: QueueReader) -> None:
        """Nothing runs here that could be waited for."""

    # What polls call.

    def finish_taken(self) -> set[QueueReader]:
        """All that was taken is done; the readers that it came from."""
        taken, self._taken = self._taken, []
        for reader, message in taken:
            reader.finish(message)
        return {reader for reader, _ in taken}

    def take(self, max_messages: int) -> list[ReceivedMessage]:
        """Up to so many messages: what the first queue in turn has, then the next, each in its order."""
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
        """Returns when something may have come, or a queue goes on."""
        self._arrived.clear()
        await self._arrived.wait()

    def wake(self) -> None:
        """Whoever waits looks again."""
        self._arrived.set()
