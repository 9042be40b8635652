"""A transport in memory, whose peer is the test, and connections on it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from delaymq.protocol.command import Command, encode_command
from delaymq.transport import ConnectionLimits, RemotingConnection

BOUND_S = 60
SERVER = ConnectionLimits(read_while_behind=False, write_pause_bytes=1000)
LARGE = bytes(2000)
"""More than a peer that does not read may leave before it is BEHIND."""


class MemoryTransport(asyncio.Transport):
    """Behaves as asyncio's: pauses and resumes its protocol, and tells it of its end in a later turn of the loop."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.is_reading_ = True
        self.taking = True
        """Whether the peer reads what it is sent."""
        self.written = bytearray()
        self.unsent = 0
        self._high = 0
        self._is_paused = False
        self._is_closing = False
        self._ends = False

    # What the connection calls.

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.is_reading_ = False

    def resume_reading(self) -> None:
        if not self._is_closing:
            self.is_reading_ = True

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Any) -> None:
        if self._is_closing:
            return
        self.written += data
        if not self.taking:
            self.unsent += len(data)
            if self.unsent > self._high and not self._is_paused:
                self._is_paused = True
                self.protocol.pause_writing()

    def close(self) -> None:
        self._is_closing = True
        self.is_reading_ = False
        if not self.unsent:
            self._end()

    def abort(self) -> None:
        self._is_closing = True
        self.is_reading_ = False
        self.unsent = 0
        self._end()

    def _end(self) -> None:
        if not self._ends:
            self._ends = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    # What the peer does.

    def receive(self, data: bytes) -> None:
        """Bytes of the peer arrive, also while reading is paused, as some that were under way do."""
        protocol = self.protocol
        assert isinstance(protocol, asyncio.BufferedProtocol)
        rest = memoryview(data)
        while rest:
            buffer = memoryview(protocol.get_buffer(len(rest)))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            protocol.buffer_updated(count)
            rest = rest[count:]

    def take(self) -> None:
        """Let the peer read all pending bytes, and all later ones immediately."""
        self.taking = True
        self.unsent = 0
        if self._is_paused:
            self._is_paused = False
            self.protocol.resume_writing()
        if self._is_closing:
            self._end()


def opened(*arguments: Any, **options: Any) -> tuple[RemotingConnection, MemoryTransport]:
    """A connection in its first state, by default with the limits of a server."""
    options.setdefault("limits", SERVER)
    connection = RemotingConnection(*arguments, **options)
    transport = MemoryTransport(connection)
    connection.connection_made(transport)
    return connection, transport


def requests(first: int, last: int, code: int = 10) -> bytes:
    """Pipelined requests with these opaques."""
    return b"".join(encode_command(Command(code, opaque)) for opaque in range(first, last + 1))


def fall_behind(connection: RemotingConnection, transport: MemoryTransport) -> None:
    """The peer stops reading, and is sent more than it may leave."""
    transport.taking = False
    connection.send(LARGE)


async def turns(count: int = 6) -> None:
    """Lets everything run that is scheduled."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - the time limit of `run` bounds it
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scenario()

    asyncio.run(bounded())
