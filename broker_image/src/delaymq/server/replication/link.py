"""Outgoing link to one member: connects, proves both sides, sends messages, and connects again."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command
from delaymq.server.replication.handshake import Connecting, Identity, LinkError, Peer, shown
from delaymq.server.replication.message_codec import UnsupportedMessageError, encode_message
from delaymq.server.replication.table_messages import LinkMessage
from delaymq.throttled_log import fields
from delaymq.transport import ConnectionLimits, RemotingConnection, TransportError, connect
from delaymq.transport.addresses import host_and_port

CONNECT_TIMEOUT_MS: Final = 3_000
HANDSHAKE_TIMEOUT_MS: Final = 3_000
"""Timeout of each of the two requests."""
FIRST_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 2.0
"""Longest pause between attempts; the name of the host is resolved each time."""
STABLE_S: Final = 5.0
"""Duration of a link after which the next attempt follows soon. Others count as failed attempts."""
VANISHED_S: Final = 4
"""Time after which the kernel ends a connection whose peer's host does not respond, or which does not read."""

Address = tuple[str, int]
Tls = Callable[[str], Awaitable[ssl.SSLContext | None]]
"""Returns the context for a connection to an address, None for one without TLS. Raises ConnectError."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LinkCounts:
    """Counters of the links with one member, in both directions."""

    connected: int = 0
    """Number of successful handshakes of outgoing connections."""
    accepted: int = 0
    """The same of incoming ones."""
    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    dropped_messages: int = 0
    """Messages that were not sent because the buffer was full."""
    dropped_bytes: int = 0
    unconnected: int = 0
    """Messages that were not sent because there was no connection."""
    unsupported: int = 0
    """Messages that were not sent because the other member runs an older program."""


class Link:
    """Connection to one member. Its task runs until it is cancelled."""

    def __init__(
        self,
        identity: Identity,
        member: str,
        address: Address,
        counts: LinkCounts,
        *,
        secret: Callable[[], bytes],
        tls: Tls,
        on_lost: Callable[[str], None],
        jitter: Callable[[], float],
        buffer_bytes: int,
    ) -> None:
        """`on_lost` is called with the member's name when a proven connection ends. `jitter` returns 0 to 1."""
        self.member = member
        self.address = address
        self.peer: Peer | None = None
        """The other side; None while there is no proven connection."""
        self.problem: str | None = "not tried yet"
        """Why there is no connection; None if there is one."""
        self._identity = identity
        self._counts = counts
        self._secret = secret
        self._tls = tls
        self._on_lost = on_lost
        self._jitter = jitter
        # The peer never counts as behind, because messages are dropped before.
        self._limits = ConnectionLimits(write_pause_bytes=buffer_bytes, write_max_bytes=2 * buffer_bytes)
        self._buffer_bytes = buffer_bytes
        self._connection: RemotingConnection | None = None
        self._ended = asyncio.Event()
        self._farewell = ""

    async def run(self) -> None:
        """Connect, and repeat whenever the connection ends."""
        loop = asyncio.get_running_loop()
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                await self._link()
            except (TransportError, LinkError, OSError, UnicodeError) as error:  # the last one: of an invalid host name
                self._note(str(error))
            except Exception as error:  # a defect must not end the attempts
                if self.problem != str(error):
                    _logger.exception("the link to member %s failed unexpectedly", self.member)
                self.problem = str(error)
            else:
                began = loop.time()
                await self._ended.wait()
                self._note(self._farewell or "the connection ended")
                if loop.time() - began >= STABLE_S:
                    backoff_s = FIRST_BACKOFF_S
            finally:
                self._drop_connection()
            # Half of it at least: members that lost each other at the same time must not connect at the same times.
            await asyncio.sleep(backoff_s * (1 + self._jitter()) / 2)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _link(self) -> None:
        self._ended.clear()
        self._farewell = ""
        host, port = self.address
        self._connection = connection = await connect(
            host,
            port,
            self._received,
            on_closed=self._closed,
            timeout_ms=CONNECT_TIMEOUT_MS,
            limits=self._limits,
            tls=await self._tls(host_and_port(host, port)),
        )
        handshake = Connecting(self._identity, self.member, self._secret())
        answer = await connection.request(handshake.hello(), HANDSHAKE_TIMEOUT_MS)
        second = handshake.answered(answer, connection.server_certificate_hash())
        peer = handshake.proven(await connection.request(second, HANDSHAKE_TIMEOUT_MS))
        connection.end_if_peer_vanishes(VANISHED_S)
        if connection.closing:
            raise LinkError("rejected", f"member {self.member} closed the connection after the handshake")
        self.peer, self.problem = peer, None
        self._counts.connected += 1
        _logger.info("connected to member %s", self.member, extra=fields(peer=connection.remote_address))

    def _note(self, problem: str) -> None:
        # Lines are at least MAX_BACKOFF_S apart if attempts fail, even if each one fails in another way.
        if problem != self.problem:
            _logger.warning("no link to member %s: %s", self.member, problem, extra=fields(peer=self.member))
        self.problem = problem

    def send(self, message: LinkMessage) -> bool:
        """Send a message; return whether it was sent. It is dropped if that would exceed the buffer. Never waits.

        ValueError for a message that cannot be encoded.
        """
        connection, peer, counts = self._connection, self.peer, self._counts
        if peer is None or connection is None or connection.closing:
            counts.unconnected += 1
            return False
        try:
            data = encode_message(message, peer.version)
        except UnsupportedMessageError:
            counts.unsupported += 1
            return False
        if connection.unwritten_bytes() + len(data) > self._buffer_bytes:
            counts.dropped_messages += 1
            counts.dropped_bytes += len(data)
            return False
        connection.send(data)
        counts.sent_messages += 1
        counts.sent_bytes += len(data)
        return True

    def disconnect(self, reason: str) -> None:
        """Close the connection; the next attempt follows after a pause."""
        self._farewell = self._farewell or reason
        if self._connection is not None:
            self._connection.close()
        self._report_end()

    def abort(self) -> None:
        """Abort the connection at the end; nothing is reported any more."""
        self.peer = None
        if self._connection is not None:
            self._connection.abort()

    def _received(self, connection: RemotingConnection, commands: list[Command]) -> None:
        # Messages arrive over the other member's own connection. This one carries responses, and a reason for its end.
        for command in commands:
            if command.code == RequestCode.LINK_REPLICA and command.is_oneway and not self._farewell:
                self._farewell = f"member {self.member} closed the connection: {shown(command.remark or '')}"

    def _closed(self, connection: RemotingConnection, error: Exception | None) -> None:
        if connection is not self._connection:
            return
        self._ended.set()
        self._report_end()

    def _report_end(self) -> None:
        peer, self.peer = self.peer, None
        if peer is not None:
            self._on_lost(self.member)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        self.peer = None
        if connection is not None:
            connection.close()
