"""Kernel information about a connection's socket (TCP_INFO, unsent bytes), and its closing behaviour.

The event loop closes a socket one iteration before the connection is notified (with TLS, its transport is already
detached then). These functions therefore return a default if the socket no longer exists.
"""

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from typing import Final

LINGER_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of accepted sockets: if the process is killed, connections are reset and peers notice immediately."""
LINGER_OFF: Final = struct.pack("ii", 0, 0)

_INTEGER: Final = struct.Struct("i")
_LAST_DATA_RECEIVED: Final = struct.Struct("52xI")
"""Field tcpi_last_data_recv of struct tcp_info (linux/tcp.h) in ms: the twelfth 32-bit field after 8 bytes."""
_STATE: Final = struct.Struct("B")
"""Field tcpi_state of struct tcp_info, the first one."""
_LEFT: Final = (7, 8)
"""TCP_CLOSE, TCP_CLOSE_WAIT (net/tcp_states.h): after a reset, and after the peer closed its side."""
_PROBE_S: Final = 1
"""Seconds between probes of an idle connection by TCP keepalive."""
_GONE: Final = (AttributeError, OSError, ValueError)
"""Errors of a missing socket, a closed descriptor, and a negative descriptor (asyncio and uvloop differ)."""


def unsent_in_kernel(transport: asyncio.BaseTransport) -> int:
    """Return the number of bytes that the peer has not acknowledged."""
    own = transport.get_extra_info("socket")
    try:
        (unsent,) = _INTEGER.unpack(fcntl.ioctl(own.fileno(), termios.TIOCOUTQ, bytes(_INTEGER.size)))
    except _GONE:
        return 0
    return int(unsent)


def descriptor_of(transport: asyncio.BaseTransport) -> int:
    """Return the socket's descriptor; -1 if it is closed."""
    own = transport.get_extra_info("socket")
    try:
        return int(own.fileno())
    except _GONE:
        return -1


def last_bytes_age_s(transport: asyncio.BaseTransport) -> float:
    """Return the seconds since the peer's last bytes reached this machine; 0 if the kernel does not report it."""
    own = transport.get_extra_info("socket")
    try:
        told = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.size)
        (age_ms,) = _LAST_DATA_RECEIVED.unpack(told)
    except (*_GONE, struct.error):
        return 0.0
    return float(age_ms) / 1000


def peer_has_closed(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has closed or reset the connection, which only reads detect otherwise; False if unknown."""
    own = transport.get_extra_info("socket")
    try:
        (state,) = _STATE.unpack(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _STATE.size))
    except (*_GONE, struct.error):
        return False
    return state in _LEFT


def reset_at_close(transport: asyncio.BaseTransport, reset: bool) -> None:
    """Set whether closing the socket, or the end of the process, resets the connection and drops unsent data."""
    own = transport.get_extra_info("socket")
    with contextlib.suppress(*_GONE):
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET if reset else LINGER_OFF)


def end_if_peer_vanishes(transport: asyncio.BaseTransport, within_s: int) -> None:
    """Let the kernel end the connection after about `within_s` seconds if the peer's host does not respond any more.

    A peer that does not read also ends it, once this side's data has waited for so long.
    """
    own = transport.get_extra_info("socket")
    with contextlib.suppress(*_GONE):
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, within_s)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, within_s * 1_000)
