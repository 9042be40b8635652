"""From a plain connection to TLS over the same socket, on either side.

Both event loops that are used here (asyncio's and uvloop's) do it by `start_tls`, which wants a handshake that has not
begun. A server has read the first bytes already, by which it knows that there is one: they are handed over.
"""

import asyncio
import ssl
from typing import Final, Protocol, cast

SHUTDOWN_TIMEOUT_S: Final = 5.0
"""How long a close waits for the peer's own word that it ends."""


class UpgradableConnection(Protocol):
    """What a handshake needs of a RemotingConnection."""

    remote_host: bytes
    remote_address: str
    closing: bool

    def begin_upgrade(self) -> asyncio.Transport:
        """Stops reading; the plain transport. ConnectionResetError when the connection has ended."""

    def secured(self, transport: asyncio.Transport, early: list[bytes]) -> None:
        """Goes on over TLS, with what came early."""

    def lost_in_upgrade(self, exc: Exception | None) -> None:
        """The handshake failed, and the socket is closed."""

    def reset_at_close(self, reset: bool) -> None:
        """Whether a close resets the connection."""

    def abort(self) -> None:
        """Ends at once."""


class _Handshaking(asyncio.Protocol):
    """Stands for the connection until its TLS transport is known, and keeps what comes in before that."""

    def __init__(self) -> None:
        self.early: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.early.append(data)


async def upgrade(
    connection: UpgradableConnection,
    context: ssl.SSLContext,
    *,
    timeout_s: float,
    server_name: str | None = None,
    received: bytes | None = None,
) -> None:
    """Does the handshake, as a server with what was `received` of it, else as a client. OSError when it fails.

    The connection's socket is closed then, without a word to its owner.
    """
    below = connection.begin_upgrade()
    waiting = _Handshaking()
    starting = asyncio.ensure_future(
        asyncio.get_running_loop().start_tls(
            below,
            waiting,
            context,
            server_side=received is not None,
            server_hostname=server_name,
            ssl_handshake_timeout=timeout_s,
            ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )
    )
    try:
        if received:
            # After its first step the transport has TLS's protocol, which has not begun and is not read for yet.
            await asyncio.sleep(0)
            _hand_over(below, received)
        above = await starting
    except BaseException:
        starting.cancel()
        below.abort()
        raise
    if above is None or below.is_closing():
        raise ConnectionResetError("the connection ended during the handshake")
    connection.secured(above, waiting.early)


def _hand_over(below: asyncio.Transport, received: bytes) -> None:
    protocol = below.get_protocol()
    if not hasattr(protocol, "buffer_updated") or below.is_closing():
        return  # the peer is gone already; the handshake says so
    taking = cast(asyncio.BufferedProtocol, protocol)
    rest = memoryview(received)
    while rest:
        buffer = memoryview(taking.get_buffer(len(rest)))
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        taking.buffer_updated(count)
        rest = rest[count:]
