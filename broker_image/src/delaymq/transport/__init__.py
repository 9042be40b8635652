"""One remoting connection over asyncio, the same for both sides: brokers accept and dial out, clients are asked too.

Here: sockets' bytes in and out, the table of open requests, back-pressure, deadlines. Not here: what a command means
(broker/, namesrv/, client/) and the bytes of frames (protocol/).

Invariant: a peer that is slow, silent or hostile costs its own connection bounded memory and time, and nobody else's.
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
