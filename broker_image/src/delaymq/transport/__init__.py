"""A remoting connection over asyncio, identical for both sides: brokers accept and open connections, and clients also
receive requests.

This package transfers bytes, tracks open requests, and applies back-pressure and deadlines. The meaning of commands is
defined in broker/, namesrv/ and client/, the bytes of frames in protocol/.

Invariant: a slow, silent or hostile peer costs only its own connection, and a bounded amount of memory and time.
"""

from delaymq.transport.connection import RemotingConnection
from delaymq.transport.connector import connect
from delaymq.transport.errors import (
    ConnectError,
    ConnectionClosedError,
    RequestTimeoutError,
    TooManyRequestsError,
    TransportError,
)
from delaymq.transport.limits import ConnectionLimits

__all__ = [
    "ConnectError",
    "ConnectionClosedError",
    "ConnectionLimits",
    "RemotingConnection",
    "RequestTimeoutError",
    "TooManyRequestsError",
    "TransportError",
    "connect",
]
