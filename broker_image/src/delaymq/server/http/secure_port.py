"""Connections of an HTTPS port until their TLS handshakes have ended.

Handshakes are limited as on the remoting ports (`transport.handshake_queue`). A connection is known to the HTTP server
only afterwards, so that clients that never complete a handshake do not take the place of others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

from delaymq.message.ids import network_of, pack_host
from delaymq.protocol.errors import TlsHandshakeError
from delaymq.protocol.frame import TLS_HANDSHAKE
from delaymq.transport.addresses import end_of, host_and_port
from delaymq.transport.connection import BELOW_TLS_BYTES
from delaymq.transport.tls_acceptor import HANDSHAKE_TIMEOUT_S, TlsAcceptor

NEEDS_HTTPS: Final = "this port serves only HTTPS: use https:// (httpTls=true)"
"""Start of the text that a plaintext request receives."""
_BODY: Final = f"{NEEDS_HTTPS}\n".encode()
_PLAINTEXT_RESPONSE: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class SecurePort:
    """Protocol factory of an HTTPS port; `accept` creates the HTTP protocol of a connection after its handshake."""

    def __init__(self, acceptor: TlsAcceptor, accept: Callable[[], asyncio.Protocol], most: int) -> None:
        """At most `most` connections can be open before the end of their handshakes."""
        self.acceptor = acceptor
        self.accept = accept
        self._most = most
        self._opening: dict[OpeningConnection, None] = {}
        """The oldest one is first."""
        self._by_network: Counter[bytes] = Counter()

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return OpeningConnection(self)

    def close(self) -> None:
        """Reset all connections whose handshakes have not ended, and start no more."""
        self.acceptor.close()
        for connection in list(self._opening):
            connection.abort()

    def add(self, connection: OpeningConnection) -> None:
        """Note a new connection; beyond the limit, reset the oldest one of the network with the most of them."""
        self._opening[connection] = None
        self._by_network[connection.network] += 1
        if len(self._opening) > self._most:
            largest = max(self._by_network, key=self._by_network.__getitem__)
            next(each for each in self._opening if each.network == largest).abort()

    def remove(self, connection: OpeningConnection) -> None:
        """Note that a handshake has ended in any way."""
        if connection in self._opening:
            del self._opening[connection]
            self._by_network[connection.network] -= 1
            if not self._by_network[connection.network]:
                del self._by_network[connection.network]


class OpeningConnection(asyncio.Protocol):
    """One connection until its handshake has ended; an UpgradableConnection."""

    def __init__(self, port: SecurePort) -> None:
        self.remote_host = b""
        self.remote_address = ""
        self.network = b""
        self.closing = False
        self._port = port
        self._transport: asyncio.Transport
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are not asyncio classes
        host, port = end_of(transport, "peername")
        self.remote_host = pack_host(host, port)
        self.remote_address = host_and_port(host, port)
        self.network = network_of(self.remote_host)
        self._timeout = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self.abort)
        self._port.add(self)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        if data[0] == TLS_HANDSHAKE:
            self._port.acceptor.take(self, TlsHandshakeError(data))
            return
        self._port.acceptor.plain_refused += 1
        if data[:1].isalpha():
            self._transport.write(_PLAINTEXT_RESPONSE)
        self.closing = True
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()

    def begin_upgrade(self) -> asyncio.Transport:
        """Stop reading; return the plaintext transport. ConnectionResetError if the connection has ended."""
        if self.closing:
            raise ConnectionResetError("the connection ended before the handshake")
        if self._timeout is not None:
            self._timeout.cancel()
        self._transport.pause_reading()
        return self._transport

    def secured(self, transport: asyncio.Transport, early: list[bytes]) -> None:
        """Continue as an HTTP connection, with the bytes received early."""
        self._ended()
        self._port.acceptor.closed()  # the HTTP server counts it from now on
        self._transport.set_write_buffer_limits(high=BELOW_TLS_BYTES)
        protocol = self._port.accept()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in early:
            protocol.data_received(data)

    def lost_in_upgrade(self, exc: Exception | None) -> None:
        """Handle a failed handshake, after which the socket is closed."""
        self._ended()

    def reset_at_close(self, reset: bool) -> None:
        """Do nothing: HTTP connections are never reset by a close."""

    def abort(self) -> None:
        """Abort the connection immediately."""
        self._ended()
        self._transport.abort()

    def _ended(self) -> None:
        self.closing = True
        if self._timeout is not None:
            self._timeout.cancel()
        self._port.remove(self)
