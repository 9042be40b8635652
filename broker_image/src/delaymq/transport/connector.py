"""Connection setup, with or without TLS, and errors that state a remedy."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from delaymq.transport.addresses import host_and_port
from delaymq.transport.connection import DEFAULT_TIMEOUT_MS, OnClosed, OnCommands, RemotingConnection
from delaymq.transport.errors import ConnectError
from delaymq.transport.limits import ConnectionLimits
from delaymq.transport.tls_certificate import ClientContext
from delaymq.transport.tls_errors import sentence
from delaymq.transport.tls_upgrade import upgrade

ATTEMPT_MS: Final = 1_200
"""Timeout of an attempt to connect, long enough for a second SYN. While a pod behind a Service is replaced, an attempt
that started with the old pod stays with it: only a new attempt reaches the new pod."""


async def connect(
    host: str,
    port: int,
    on_commands: OnCommands | None = None,
    *,
    on_closed: OnClosed | None = None,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
    limits: ConnectionLimits | None = None,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
) -> RemotingConnection:
    """Connect to a peer. Without `on_commands`, its requests are rejected. Raises ConnectError.

    With `tls`, the peer's certificate must be valid for `server_name`, default the name in a ClientContext or `host`,
    if the context checks names.
    """
    loop = asyncio.get_running_loop()
    address = host_and_port(host, port)
    deadline = loop.time() + timeout_ms / 1000
    try:
        async with asyncio.timeout_at(deadline):
            connection = await _connect(
                host, port, lambda: RemotingConnection(on_commands, on_closed=on_closed, limits=limits)
            )
    except TimeoutError as error:
        raise ConnectError(address, f"no connection within {timeout_ms} ms") from error
    except OSError as error:
        raise ConnectError(address, f"cannot connect: {error.strerror or error}") from error
    if tls is not None:
        name = server_name or (tls.server_name if isinstance(tls, ClientContext) else "") or host
        try:
            async with asyncio.timeout_at(deadline):
                # The outer timeout decides; the handshake's own one only cleans up after it.
                await upgrade(connection, tls, timeout_s=timeout_ms / 1000 + 1, server_name=name)
        except OSError as error:  # TimeoutError is one
            raise ConnectError(address, f"no TLS: {sentence(error)}") from error
    return connection


async def _connect(host: str, port: int, factory: Callable[[], RemotingConnection]) -> RemotingConnection:
    loop = asyncio.get_running_loop()
    failed: OSError | None = None
    # Resolved here: after a timeout, uvloop's create_connection abandons a slow resolution, whose failure is then
    # logged as an exception that was never retrieved.
    places = [str(place[0]) for *_, place in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    silent = True
    while silent:
        silent = False
        for place in places:
            try:
                async with asyncio.timeout(ATTEMPT_MS / 1000):
                    _, connection = await loop.create_connection(factory, place, port)
            except TimeoutError:
                silent = True
            except OSError as error:
                failed = failed or error
            else:
                return connection
    raise failed or OSError("the host name has no address")
