"""What the kernel knows of a connection's socket (TCP_INFO, unsent bytes), and how it is closed.

The loop closes a socket a turn before the connection is told of its end (with TLS it is taken from it that early): each
of these then finds nothing, and says so quietly.
"""

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from typing import Final

LINGER_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of accepted sockets: a killed process resets its connections, and its peers notice at once."""
LINGER_OFF: Final = struct.pack("ii", 0, 0)

_INTEGER: Final = struct.Struct("i")
_LAST_DATA_RECEIVED: Final = struct.Struct("52xI")
"""Of struct tcp_info (linux/tcp.h): tcpi_last_data_recv, ms, the twelfth 32-bit field after the first 8 bytes."""
_STATE: Final = struct.Struct("B")
"""Of the same: tcpi_state, the first field."""
_LEFT: Final = (7, 8)
"""TCP_CLOSE, TCP_CLOSE_WAIT (net/tcp_states.h): after a reset, and after an end."""
_GONE: Final = (AttributeError, OSError, ValueError)
"""No socket at all; a number that is nobody's; a number below zero (asyncio and uvloop tell it in their own ways)."""


def unsent_in_kernel(transport: asyncio.BaseTransport) -> int:
    """Bytes that the peer has not acknowledged."""
    own = transport.get_extra_info("socket")
    try:
        (unsent,) = _INTEGER.unpack(fcntl.ioctl(own.fileno(), termios.TIOCOUTQ, bytes(_INTEGER.size)))
    except _GONE:
        return 0
    return int(unsent)


def descriptor_of(transport: asyncio.BaseTransport) -> int:
    """The socket's descriptor; -1 when it is closed."""
    own = transport.get_extra_info("socket")
    try:
        return int(own.fileno())
    except _GONE:
        return -1


def last_bytes_age_s(transport: asyncio.BaseTransport) -> float:
    """Seconds since the peer's last bytes came to this machine; 0 where the kernel does not tell."""
    own = transport.get_extra_info("socket")
    try:
        told = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.size)
        (age_ms,) = _LAST_DATA_RECEIVED.unpack(told)
    except (*_GONE, struct.error):
        return 0.0
    return float(age_ms) / 1000


def peer_has_closed(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has ended or reset the connection, which nobody notices who does not read; False if unknown."""
    own = transport.get_extra_info("socket")
    try:
        (state,) = _STATE.unpack(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _STATE.size))
    except (*_GONE, struct.error):
        return False
    return state in _LEFT


def reset_at_close(transport: asyncio.BaseTransport, reset: bool) -> None:
    """Whether the socket's end, also by the process's, resets the connection and drops what is unsent."""
    own = transport.get_extra_info("socket")
    with contextlib.suppress(*_GONE):
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET if reset else LINGER_OFF)
