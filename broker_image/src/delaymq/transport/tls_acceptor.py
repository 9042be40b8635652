"""TLS on a server's ordinary port, detected by the first byte of a connection.

Plaintext connections incur no overhead: no frame starts with the first byte of a handshake, so the frame receiver
detects it when it rejects an excessive length. Running handshakes use memory and processor time of the loop's thread:
one starts per loop iteration, and their number is limited (`handshake_queue`).
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from delaymq.clock import now_ms
from delaymq.protocol.command import Command
from delaymq.protocol.errors import ProtocolError, TlsHandshakeError
from delaymq.protocol.frame import TLS_HANDSHAKE, FrameReceiver
from delaymq.throttled_log import ThrottledLogger
from delaymq.transport.handshake_queue import Handshake, HandshakeQueue
from delaymq.transport.tls_errors import sentence
from delaymq.transport.tls_upgrade import UpgradableConnection, upgrade

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Timeout of a handshake while no others wait."""

_logger = logging.getLogger(__name__)
_throttled = ThrottledLogger(_logger, now_ms)


class PlainRefusedError(ProtocolError):
    """A peer connected without TLS to a server that requires it."""

    def __init__(self) -> None:
        super().__init__("it connected without TLS, but TLS is required (tls.server.mode=enforcing)")


class HandshakeReceiver(FrameReceiver):
    """Receiver of servers that require TLS: the first byte decides, and no frame is accepted."""

    __slots__ = ()

    def begun(self, n: int) -> bytes:
        return b""

    def received(self, n: int, handled: int = 0) -> list[Command]:
        first = bytes(self.get_buffer(0)[:n])
        if first and first[0] == TLS_HANDSHAKE:
            raise TlsHandshakeError(first)
        raise PlainRefusedError


class TlsAcceptor:
    """TLS of one server. `context` returns the context for the next handshake; may raise ssl.SSLError, OSError."""

    def __init__(self, context: Callable[[], Awaitable[ssl.SSLContext]], *, enforcing: bool) -> None:
        self.enforcing = enforcing
        self.done = 0
        """Number of successful handshakes."""
        self.failed = 0
        self.plain_refused = 0
        self.open_connections = 0
        self.ended = 0
        """Number of connections and attempts that ended."""
        self._context = context
        self._queue = HandshakeQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None

    @property
    def under_way(self) -> int:
        """Number of running and waiting handshakes."""
        return self._queue.under_way + self._queue.waiting

    def take(self, connection: UpgradableConnection, error: ProtocolError) -> bool:
        """Start a handshake if `error`, with which a frame was rejected, indicates one; return whether it does."""
        if isinstance(error, PlainRefusedError):
            self.plain_refused += 1
        if not isinstance(error, TlsHandshakeError) or not error.received:
            return False
        loop = asyncio.get_running_loop()
        connection.begin_upgrade()
        self._queue.wait(Handshake(connection, error.received, loop.time()))
        self._schedule_next(loop)
        return True

    def closed(self) -> None:
        """Note that a connection with TLS ended."""
        self.open_connections -= 1
        self.ended += 1

    def close(self) -> None:
        """Start no more handshakes; running ones end with their connections."""
        self._queue.drop_waiting()
        for handle in (self._turn, self._later):
            if handle is not None:
                handle.cancel()
        for task in list(self._tasks):
            task.cancel()

    def _schedule_next(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._turn is None and self._queue.waiting:
            self._turn = loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = None
        if self._later is not None:
            self._later.cancel()
            self._later = None
        now = loop.time()
        for late in self._queue.expired(now):
            self._end(late, "it waited too long to start")
        found = self._queue.next(now)
        if isinstance(found, float):
            if self._queue.waiting:
                self._later = loop.call_later(found, self._next, loop)
            return
        handshake, in_the_way = found
        if in_the_way is not None:
            self._end(in_the_way, "it took too long while others waited")
        task = loop.create_task(self._handshake(handshake, loop))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, handshake, loop))
        self._schedule_next(loop)

    def _end(self, handshake: Handshake, why: str) -> None:
        connection = handshake.connection
        if not connection.closing:
            self.failed += 1
            peer = connection.remote_address
            _throttled.warning("TLS handshake with %s failed: %s", peer, why, peer=peer)
            connection.abort()

    def _ended(self, task: asyncio.Task[None], handshake: Handshake, loop: asyncio.AbstractEventLoop) -> None:
        self._tasks.discard(task)
        self._queue.ended(handshake)
        self._schedule_next(loop)

    async def _handshake(self, handshake: Handshake, loop: asyncio.AbstractEventLoop) -> None:
        connection = handshake.connection
        peer = connection.remote_address
        try:
            context = await self._context()
            if connection.closing:
                self.ended += 1
                return
            handshake.since = loop.time()
            # The rejection must reach the peer: it states the problem with its certificate.
            connection.reset_at_close(False)
            await upgrade(connection, context, timeout_s=HANDSHAKE_TIMEOUT_S, received=handshake.received)
        except OSError as error:
            self.ended += 1
            if not connection.closing:
                self.failed += 1
                _throttled.warning("TLS handshake with %s failed: %s", peer, sentence(error), peer=peer)
            connection.lost_in_upgrade(error)
            # Its frames refer to the task that holds the error: only the garbage collector would free them.
            error.__traceback__ = error.__context__ = None
        except BaseException:
            connection.lost_in_upgrade(None)
            raise
        else:
            connection.reset_at_close(True)
            self.done += 1
            self.open_connections += 1
