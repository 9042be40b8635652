"""The messages of one queue that a consumer has pulled and not yet handled, and the offset that it may commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from delaymq.client.messages import ReceivedMessage


class CacheTotal:
    """What all queues of a consumer have cached. Full at its limit, until a quarter of it is free again.

    `on_room` is called then: whoever waits may go on. Without the quarter each message that is done would wake all.
    """

    def __init__(self, max_messages: int, max_bytes: int, on_room: Callable[[], None]) -> None:
        self.count = 0
        self.size_bytes = 0
        self.is_full = False
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._on_room = on_room

    def add(self, count: int, size_bytes: int) -> None:
        """So many more, or fewer."""
        self.count += count
        self.size_bytes += size_bytes
        if not self.is_full:
            self.is_full = self.count >= self._max_messages or self.size_bytes >= self._max_bytes
        elif self.count * 4 <= self._max_messages * 3 and self.size_bytes * 4 <= self._max_bytes * 3:
            self.is_full = False
            self._on_room()


class ProcessQueue:
    """Messages in the order of their offsets. `commit_offset` is that of the first unfinished one, so that nothing
    unfinished is ever skipped; what was finished above it may come again after a crash.
    """

    __slots__ = ("_bytes", "_finished", "_order", "_pulled_to", "_sizes", "_total")

    def __init__(self, start_offset: int, total: CacheTotal | None = None) -> None:
        self._total = total
        self._order: deque[int] = deque()
        self._sizes: dict[int, int] = {}
        self._finished: set[int] = set()
        self._pulled_to = start_offset
        self._bytes = 0

    @property
    def count(self) -> int:
        """Unfinished messages."""
        return len(self._sizes)

    @property
    def size_bytes(self) -> int:
        """Bytes of their bodies."""
        return self._bytes

    @property
    def span(self) -> int:
        """Distance from the first unfinished offset to the next one to pull."""
        return self._pulled_to - self._order[0] if self._order else 0

    @property
    def pulled_to(self) -> int:
        """The next offset to pull."""
        return self._pulled_to

    @property
    def offsets(self) -> tuple[int, int] | None:
        """The first and the last unfinished offset."""
        if not self._order:
            return None
        # Finished ones may still stand behind unfinished ones.
        last = next(offset for offset in reversed(self._order) if offset in self._sizes)
        return self._order[0], last

    @property
    def commit_offset(self) -> int:
        """The next offset to consume after a restart."""
        return self._order[0] if self._order else self._pulled_to

    def add(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Takes in what a pull brought, in order; `next_offset` is where the next pull begins.

        The offsets of `messages` rise, from `pulled_to` on and below `next_offset`.
        """
        count, size_bytes = len(self._sizes), self._bytes
        for message in messages:
            offset = message.queue_offset
            self._order.append(offset)
            self._sizes[offset] = len(message.body)
            self._bytes += len(message.body)
        self._pulled_to = next_offset
        if self._total is not None:
            self._total.add(len(self._sizes) - count, self._bytes - size_bytes)

    def finish(self, offset: int) -> None:
        """The message at `offset` is done with, however it ended."""
        size = self._sizes.pop(offset, None)
        if size is None:
            return
        self._bytes -= size
        if self._total is not None:
            self._total.add(-1, -size)
        self._finished.add(offset)
        while self._order and self._order[0] in self._finished:
            self._finished.remove(self._order.popleft())

    def release(self) -> None:
        """What is left counts no more for all queues: the queue is given up."""
        total, self._total = self._total, None
        if total is not None:
            total.add(-len(self._sizes), -self._bytes)
