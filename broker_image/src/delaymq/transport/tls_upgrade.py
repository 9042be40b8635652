"""Upgrade of a plaintext connection to TLS over the same socket, on either side.

Both supported event loops (asyncio's and uvloop's) use `start_tls`, which requires a handshake that has not started. A
server has already read the first bytes to detect the handshake; these are passed on.
"""

import asyncio
import ssl
from typing import Final, Protocol, cast

SHUTDOWN_TIMEOUT_S: Final = 5.0
"""Time for which a close waits for the peer's close notification."""


class UpgradableConnection(Protocol):
    """Part of RemotingConnection that a handshake uses."""

    remote_host: bytes
    remote_address: str
    closing: bool

    def begin_upgrade(self) -> asyncio.Transport:
        """Stop reading; return the plaintext transport. ConnectionResetError if the connection has ended."""

    def secured(self, transport: asyncio.Transport, early: list[bytes]) -> None:
        """Continue with TLS, with the bytes received early."""

    def lost_in_upgrade(self, exc: Exception | None) -> None:
        """Handle a failed handshake, after which the socket is closed."""

    def reset_at_close(self, reset: bool) -> None:
        """Set whether a close resets the connection."""

    def abort(self) -> None:
        """Abort the connection immediately."""


class _Handshaking(asyncio.Protocol):
    """Protocol in place of the connection until its TLS transport exists; stores what is received before."""

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
    """Perform the handshake, as a server that has read `received` of it, else as a client. OSError if it fails.

    In that case the connection's socket is closed without notification of its owner.
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
            # After one step of `start_tls`, the transport has its TLS protocol, which has not read anything yet.
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
        return  # the peer has already closed; the handshake reports it
    taking = cast(asyncio.BufferedProtocol, protocol)
    rest = memoryview(received)
    while rest:
        buffer = memoryview(taking.get_buffer(len(rest)))
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        taking.buffer_updated(count)
        rest = rest[count:]
