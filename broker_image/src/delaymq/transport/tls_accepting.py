"""TLS on a server's ordinary port: the first byte of a connection tells whether it is TLS.

A plain connection pays nothing: no frame begins with a handshake's first byte, so the frame receiver finds it where it
refuses what is too long. Handshakes cost processor time on the loop's thread and memory while they are under way:
one begins in a turn of the loop, and only so many at a time.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from delaymq.clock import now_ms
from delaymq.protocol.command import Command
from delaymq.protocol.errors import ProtocolError, TlsHandshakeError
from delaymq.protocol.frame import TLS_HANDSHAKE, FrameReceiver
from delaymq.quiet_log import QuietLog
from delaymq.transport.tls_errors import sentence
from delaymq.transport.tls_upgrade import upgrade

if TYPE_CHECKING:
    from delaymq.transport.connection import RemotingConnection

MAX_HANDSHAKES: Final = 256
"""Under way at a time: each holds up to 100 KB. After a restart all clients come at once; the others wait."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
"""For one handshake, and for its turn; a client gives up after 3 s."""
CONTENDED_TIMEOUT_S: Final = 3.0
"""The same for handshakes that begin while others wait: who says nothing must not keep them out."""

_logger = logging.getLogger(__name__)
_failures = QuietLog(_logger, now_ms)


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


class TlsAccepting:
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
        self._waiting: deque[tuple[RemotingConnection, bytes, float]] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._turn: asyncio.Handle | None = None

    @property
    def under_way(self) -> int:
        """Handshakes that have begun or wait for their turn."""
        return len(self._under_way) + len(self._waiting)

    def take(self, connection: "RemotingConnection", error: ProtocolError) -> bool:
        """Whether `error`, by which a connection would be cut off, is a handshake that is done instead."""
        if isinstance(error, PlainRefusedError):
            self.plain_refused += 1
        if not isinstance(error, TlsHandshakeError) or not error.received:
            return False
        loop = asyncio.get_running_loop()
        connection.begin_upgrade()
        self._waiting.append((connection, error.received, loop.time() + HANDSHAKE_TIMEOUT_S))
        self._next_soon(loop)
        return True

    def closed(self) -> None:
        """A connection with TLS ended."""
        self.open_connections -= 1
        self.ended += 1

    def close(self) -> None:
        """Begins no handshake any more; those under way end with their connections."""
        self._waiting.clear()
        if self._turn is not None:
            self._turn.cancel()
        for task in list(self._under_way):
            task.cancel()

    def _next_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._turn is None and self._waiting and len(self._under_way) < MAX_HANDSHAKES:
            self._turn = loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = None
        connection, received, deadline = self._waiting.popleft()
        if connection.closing or loop.time() > deadline:
            self.failed += not connection.closing
            connection.close()
        else:
            timeout_s = CONTENDED_TIMEOUT_S if self._waiting else HANDSHAKE_TIMEOUT_S
            task = loop.create_task(self._handshake(connection, received, timeout_s))
            self._under_way.add(task)
            task.add_done_callback(lambda task: self._ended(task, loop))
        self._next_soon(loop)

    def _ended(self, task: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
        self._under_way.discard(task)
        self._next_soon(loop)

    async def _handshake(self, connection: "RemotingConnection", received: bytes, timeout_s: float) -> None:
        peer = connection.remote_address
        try:
            context = await self._context()
            # A refusal must reach the peer: it says what is wrong with its certificate.
            connection.reset_at_close(False)
            await upgrade(connection, context, timeout_s=timeout_s, received=received)
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
