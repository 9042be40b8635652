"""Relay of the links from one member to the others, which delays, repeats, reorders and loses their messages.

It runs in the namespace of the sending member, so that faults of the network also apply to it. The handshake, which is
the first two frames of a connection, and everything in the other direction are not changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from replication.namespaces import Node

HOST = "127.0.0.1"
FIRST_PORT = 20_001
HANDSHAKE_FRAMES = 2
MAX_QUEUED_BYTES = 1 << 23
CHUNK_BYTES = 1 << 16
START_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What happens to messages; shares are between 0 and 1."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Longest additional delay, with which a share of the messages is overtaken by others."""
    reordered: float = 0.0
    repeated: float = 0.0
    lost: float = 0.0


NONE = Disturbance()


class Relay(threading.Thread):
    """Relay for one member, which runs in its own thread from `start` until `stop`."""

    def __init__(self, node: Node, others: Mapping[str, tuple[str, int]], seed: str) -> None:
        super().__init__(name=f"relay of {node.name}", daemon=True)
        self.disturbance = NONE
        self.addresses = {name: (HOST, FIRST_PORT + index) for index, name in enumerate(others)}
        """Addresses of the other members for this member."""
        self.error: BaseException | None = None
        self._node = node
        self._others = dict(others)
        self._random = random.Random(seed)
        self._ready = threading.Event()
        self._ended: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Start, and wait until the relay accepts connections."""
        self.start()
        assert self._ready.wait(START_TIMEOUT_S)
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Close all connections."""
        if self._loop is not None and self._ended is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._ended.set)
            self.join(START_TIMEOUT_S)

    def run(self) -> None:
        try:
            self._node.enter()
            asyncio.run(self._serve())
        except BaseException as error:
            self.error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        async def accept(name: str) -> asyncio.Server:
            def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = asyncio.ensure_future(self._relay(reader, writer, self._others[name]))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

            return await asyncio.start_server(accepted, *self.addresses[name])

        servers = [await accept(name) for name in self._others]
        self._ready.set()
        await self._ended.wait()
        for server in servers:
            server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: tuple[str, int]
    ) -> None:
        """Relay one connection until one of its ends closes it."""
        onward: asyncio.StreamWriter | None = None
        try:
            back, onward = await asyncio.open_connection(*address)
            stages = _Delayed(onward, lambda: self.disturbance, self._random)
            ways = [
                asyncio.ensure_future(stages.receive(reader)),
                asyncio.ensure_future(stages.send()),
                asyncio.ensure_future(_copy(back, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in (writer, onward):
                if end is not None:
                    end.transport.abort()


class _Delayed:
    """Frames of one connection that wait for the time at which they are sent."""

    def __init__(
        self, writer: asyncio.StreamWriter, disturbance: Callable[[], Disturbance], chance: random.Random
    ) -> None:
        self._writer = writer
        self._disturbance = disturbance
        self._random = chance
        self._heap: list[tuple[float, int, bytes]] = []
        self._numbers = itertools.count()
        self._bytes = 0
        self._last_s = 0.0
        self._changed = asyncio.Event()
        self._sent = asyncio.Event()

    async def receive(self, reader: asyncio.StreamReader) -> None:
        """Read frames until the connection ends."""
        for number in itertools.count():
            try:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(int.from_bytes(head, "big"))
            except (asyncio.IncompleteReadError, OSError):
                return
            self._put(frame, NONE if number < HANDSHAKE_FRAMES else self._disturbance())
            while self._bytes > MAX_QUEUED_BYTES:
                self._sent.clear()
                await self._sent.wait()

    def _put(self, frame: bytes, how: Disturbance) -> None:
        if self._random.random() < how.lost:
            return
        now = asyncio.get_running_loop().time()
        self._last_s = max(self._last_s, now + how.delay_s)
        for _ in range(2 if self._random.random() < how.repeated else 1):
            at = self._last_s
            if self._random.random() < how.reordered:
                at += self._random.uniform(0, how.jitter_s)
            heapq.heappush(self._heap, (at, next(self._numbers), frame))
            self._bytes += len(frame)
        self._changed.set()

    async def send(self) -> None:
        """Send frames when their time has come."""
        loop = asyncio.get_running_loop()
        while True:
            wait_s = self._heap[0][0] - loop.time() if self._heap else None
            if wait_s is not None and wait_s <= 0:
                _, _, frame = heapq.heappop(self._heap)
                self._bytes -= len(frame)
                self._sent.set()
                try:
                    self._writer.write(frame)
                    await self._writer.drain()
                except OSError:
                    return
                continue
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
