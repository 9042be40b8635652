"""TLS on a server's ordinary port: the first byte of a connection tells whether it is TLS.

A plain connection pays nothing: no frame begins with a handshake's first byte, so the frame receiver finds it where it
refuses what is too long. Handshakes cost processor time on the loop's thread and memory while they are under way:
one begins in a turn of the loop, and only so many at a time (`handshake_queue`).
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
"""For one handshake while nobody else waits."""

_logger = logging.getLogger(__name__)
_failures = ThrottledLogger(_logger, now_ms)


class PlainRefusedError(ProtocolError):
    """A peer came without TLS where only TLS is served."""

    def __init__(self) -> None:
        super().__init__("it came without TLS, and only TLS is taken here (tls.server.mode=enforcing)")


class HandshakeReceiver(FrameReceiver):
    """In a FrameReceiver's place where only TLS is served: the first byte decides, and no frame is ever taken."""

    __slots__ = ()

    def received(self, n: int) -> list[Command]:
        first = bytes(self.get_buffer(0)[:n])
        if first and first[0] == TLS_HANDSHAKE:
            raise TlsHandshakeError(first)
        raise PlainRefusedError


class TlsAcceptor:
    """The TLS of one server. `context` gives the one for the next handshake; ssl.SSLError, OSError when it cannot."""

    def __init__(self, context: Callable[[], Awaitable[ssl.SSLContext]], *, enforcing: bool) -> None:
        self.enforcing = enforcing
        self.done = 0
        """Handshakes that succeeded."""
        self.failed = 0
        self.plain_refused = 0
        self.open_connections = 0
        self.ended = 0
        """Connections and attempts that are over."""
        self._context = context
        self._queue = HandshakeQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None

    @property
    def under_way(self) -> int:
        """Handshakes that have begun or wait for their turn."""
        return self._queue.under_way + self._queue.waiting

    def take(self, connection: UpgradableConnection, error: ProtocolError) -> bool:
        """Whether `error`, by which a connection would be cut off, is a handshake that is done instead."""
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
        """A connection with TLS ended."""
        self.open_connections -= 1
        self.ended += 1

    def close(self) -> None:
        """Begins no handshake any more; those under way end with their connections."""
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
            self._end(late, "its turn did not come in time")
        found = self._queue.next(now)
        if isinstance(found, float):
            if self._queue.waiting:
                self._later = loop.call_later(found, self._next, loop)
            return
        handshake, in_the_way = found
        if in_the_way is not None:
            self._end(in_the_way, "it was not done in time, and others wait")
        task = loop.create_task(self._handshake(handshake, loop))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, handshake, loop))
        self._schedule_next(loop)

    def _end(self, handshake: Handshake, why: str) -> None:
        connection = handshake.connection
        if not connection.closing:
            self.failed += 1
            peer = connection.remote_address
            _failures.warning("TLS handshake with %s failed: %s", peer, why, peer=peer)
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
            # A refusal must reach the peer: it says what is wrong with its certificate.
            connection.reset_at_close(False)
            await upgrade(connection, context, timeout_s=HANDSHAKE_TIMEOUT_S, received=handshake.received)
        except OSError as error:
            self.ended += 1
            if not connection.closing:
                self.failed += 1
                _failures.warning("TLS handshake with %s failed: %s", peer, sentence(error), peer=peer)
            connection.lost_in_upgrade(error)
            # Its frames hold the task that holds the error: only the garbage collector would free them.
            error.__traceback__ = error.__context__ = None
        except BaseException:
            connection.lost_in_upgrade(None)
            raise
        else:
            connection.reset_at_close(True)
            self.done += 1
            self.open_connections += 1
