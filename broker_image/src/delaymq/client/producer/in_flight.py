"""Sends in flight of a producer, limited so that a slow broker does not fill memory."""

from __future__ import annotations

import asyncio
from collections import deque

from delaymq.client.errors import ClosedError


class InFlight:
    """Admission of sends. Each send that enters must leave, even after a failure. When the limit is reached, others
    wait in FIFO order.

    A send larger than the limit is admitted when there is no other.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._bytes = 0
        self._count = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._emptied: asyncio.Event | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def waiting(self) -> int:
        """The number of waiting sends."""
        return len(self._waiting)

    def try_enter(self, size_bytes: int) -> bool:
        """Enter if the limit permits and no other send is waiting."""
        if self._waiting or not self._has_room(size_bytes):
            return False
        self._take(size_bytes)
        return True

    async def enter(self, size_bytes: int) -> None:
        """Wait until the limit permits, then enter. ClosedError if the producer is closed meanwhile."""
        if self.try_enter(size_bytes):
            return
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((room, size_bytes))
        try:
            await room
        except asyncio.CancelledError:
            if room.done() and not room.cancelled() and room.exception() is None:
                self.leave(size_bytes)  # it was admitted at the moment of its cancellation
            else:
                room.cancel()
                self._admit_waiting()
            raise

    def leave(self, size_bytes: int) -> None:
        """Leave, and admit waiting sends."""
        self._count -= 1
        self._bytes -= size_bytes
        if self._waiting:
            self._admit_waiting()
        if self._emptied is not None and not self._count:
            self._emptied.set()

    async def end(self, timeout_ms: int) -> None:
        """Reject waiting sends, then wait for those in flight, at most `timeout_ms`."""
        waiting, self._waiting = self._waiting, deque()
        for room, _ in waiting:
            if not room.done():
                room.set_exception(ClosedError("the producer was closed while the send waited for other sends"))
        if self._count:
            self._emptied = asyncio.Event()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._emptied.wait()
            except TimeoutError:
                pass  # they end at their own timeouts, or with the client
            finally:
                self._emptied = None

    def _has_room(self, size_bytes: int) -> bool:
        if not self._count:
            return True
        return self._count < self._max_messages and self._bytes + size_bytes <= self._max_bytes

    def _take(self, size_bytes: int) -> None:
        self._count += 1
        self._bytes += size_bytes

    def _admit_waiting(self) -> None:
        while self._waiting:
            room, size_bytes = self._waiting[0]
            if not room.done():
                if not self._has_room(size_bytes):
                    return
                self._take(size_bytes)
                room.set_result(None)
            self._waiting.popleft()
