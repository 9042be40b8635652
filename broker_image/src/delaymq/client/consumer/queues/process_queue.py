"""Unfinished messages of a queue, and the offset that may be committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat

from delaymq.client.messages import ReceivedMessage, body_sizes, queue_offsets


class CacheTotal:
    """Totals of all queues of a consumer. Full at the limit, until a quarter of it is free again.

    `on_room` is called then, so that waiting readers continue. Without the quarter, every finished message would wake
    all of them.
    """

    def __init__(self, max_messages: int, max_bytes: int, on_room: Callable[[], None]) -> None:
        self.count = 0
        self.size_bytes = 0
        self.is_full = False
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._on_room = on_room

    def add(self, count: int, size_bytes: int) -> None:
        """Add to, or subtract from, the totals."""
        self.count += count
        self.size_bytes += size_bytes
        if not self.is_full:
            self.is_full = self.count >= self._max_messages or self.size_bytes >= self._max_bytes
        elif self.count * 4 <= self._max_messages * 3 and self.size_bytes * 4 <= self._max_bytes * 3:
            self.is_full = False
            self._on_room()


class ProcessQueue:
    """Messages in the order of their offsets.

    `commit_offset` is that of the first unfinished message, so that no unfinished message is ever skipped; messages
    finished above it may be repeated after a crash.
    """

    __slots__ = ("_bytes", "_order", "_pulled_to", "_sizes", "_total")

    def __init__(self, start_offset: int, total: CacheTotal | None = None) -> None:
        self._total = total
        self._order: deque[int] = deque()
        """Offsets from the first unfinished one on, without gaps for those finished above it."""
        self._sizes: dict[int, int] = {}
        """Offset of each unfinished message → size of its body."""
        self._pulled_to = start_offset
        self._bytes = 0

    @property
    def count(self) -> int:
        """The number of unfinished messages."""
        return len(self._sizes)

    @property
    def size_bytes(self) -> int:
        """Total size of their bodies in bytes."""
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
        # Finished messages may still follow unfinished ones.
        last = next(offset for offset in reversed(self._order) if offset in self._sizes)
        return self._order[0], last

    @property
    def commit_offset(self) -> int:
        """The next offset to consume after a restart."""
        return self._order[0] if self._order else self._pulled_to

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Add the messages of a pull, in order; `next_offset` is the start of the next pull.

        The offsets of `messages` are ascending, at least `pulled_to`, and below `next_offset`.
        """
        offsets, sizes = queue_offsets(messages), body_sizes(messages)
        self._order.extend(offsets)
        self._sizes.update(zip(offsets, sizes, strict=True))
        self._pulled_to = next_offset
        self._count(len(offsets), sum(sizes))

    def finish(self, offsets: Iterable[int]) -> None:
        """Mark the messages at `offsets` as finished, whatever their outcome; finished and unknown ones are ignored."""
        sizes, order = self._sizes, self._order
        count = len(sizes)
        size_bytes = sum(map(sizes.pop, offsets, repeat(0)))
        self._count(len(sizes) - count, -size_bytes)
        if not sizes:
            order.clear()
        while order and order[0] not in sizes:
            order.popleft()

    def release(self) -> None:
        """Remove the remaining messages from the totals, since the queue is released."""
        total, self._total = self._total, None
        if total is not None:
            total.add(-len(self._sizes), -self._bytes)

    def _count(self, count: int, size_bytes: int) -> None:
        self._bytes += size_bytes
        if count and self._total is not None:
            self._total.add(count, size_bytes)
