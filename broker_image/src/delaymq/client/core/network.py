"""Connections to the peers of a client, one each, opened on demand and reopened after failures."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from delaymq.client.core.shared_calls import SharedCalls
from delaymq.client.credentials import Credentials
from delaymq.client.errors import AnswerTimeoutError, ClientError, UnreachableError, refusal
from delaymq.client.tls import TlsOptions
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command
from delaymq.protocol.credential_fields import NEW_CHALLENGE
from delaymq.transport import (
    ConnectError,
    RemotingConnection,
    RequestTimeoutError,
    TransportError,
    connect,
)

VANISHED_S: Final = 5
"""Time after which the kernel ends a connection to a host that does not respond; by default, it waits 15 minutes, in
which all requests would time out."""
SILENT_AT_LEAST_MS: Final = 1_000
"""Shorter timeouts say nothing about the peer."""
SILENCE_TOLERANCE_MS: Final = 50

OnCommands = Callable[[RemotingConnection, list[Command]], None]
OnConnected = Callable[[str, RemotingConnection], Awaitable[None]]
WrongServer = Callable[[str, str], str | None]
"""Return why the server that sent a challenge cannot be the one at an address; None: it can."""


class Network:
    """Connections by address (`host:port`). `on_connected` runs before the first request of a new connection."""

    def __init__(
        self,
        on_commands: OnCommands,
        on_connected: OnConnected,
        connect_timeout_ms: int,
        credentials: Credentials | None = None,
        tls: TlsOptions | None = None,
        wrong_server: WrongServer = lambda address, server: None,
    ) -> None:
        self._on_commands = on_commands
        self._on_connected = on_connected
        self._connect_timeout_ms = connect_timeout_ms
        self._credentials = credentials
        self._wrong_server = wrong_server
        self._tls = tls
        self._open: dict[str, RemotingConnection] = {}
        self._dials: SharedCalls[str, RemotingConnection] = SharedCalls()

    @property
    def addresses(self) -> list[str]:
        """The connected peers."""
        return [address for address, connection in self._open.items() if not connection.closing]

    def address_of(self, connection: RemotingConnection) -> str:
        """Return the address of a connection."""
        for address, known in self._open.items():
            if known is connection:
                return address
        return connection.remote_address

    async def connection(self, address: str) -> RemotingConnection:
        """Return the connection to `address`. Raises UnreachableError."""
        connection = self._open.get(address)
        if connection is not None and not connection.closing:
            return connection
        return await self._dials.call(address, lambda: self._dial(address))

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Return the response with code 0. Raises RefusedError for any other code, UnreachableError,
        AnswerTimeoutError.
        """
        answer = await self.invoke(address, command, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(address, answer)
        return answer

    async def invoke(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Return the response, whatever its code. Raises UnreachableError and AnswerTimeoutError.

        `timeout_ms` covers connecting, waiting for a peer that does not read, and the response.
        """
        connection, left_ms = self.ready(address), timeout_ms
        if connection is None:
            connection, left_ms = await self._ready(address, timeout_ms)
        try:
            # As `RemotingConnection.request`, without another coroutine for each send.
            future = connection.start_request(command, left_ms)
            try:
                answer = await future
            finally:
                if not future.done() or future.cancelled():
                    connection.forget_request(command.opaque)
        except TransportError as error:
            raise failure_of(connection, address, error, left_ms, timeout_ms) from error
        if answer.code == ResponseCode.SYSTEM_ERROR and NEW_CHALLENGE in (answer.remark or ""):
            connection.close()  # the next request obtains a new one
        return answer

    def ready(self, address: str) -> RemotingConnection | None:
        """Return the connection to `address`; None unless it is open and the peer reads what is sent to it."""
        connection = self._open.get(address)
        return None if connection is None or connection.closing or connection.is_behind else connection

    async def _ready(self, address: str, timeout_ms: int) -> tuple[RemotingConnection, int]:
        """Return a ready connection, and the remaining time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self.connection(address)
                await connection.drain()
        except TimeoutError:
            raise AnswerTimeoutError(address, timeout_ms) from None
        return connection, max(int((deadline - loop.time()) * 1000), 1)

    async def oneway(self, address: str, command: Command) -> None:
        """Send a request without a response. Raises UnreachableError if a failure is detected immediately."""
        try:
            connection = await self.connection(address)
            await connection.drain()
            connection.send_oneway(command)
        except TransportError as error:
            raise UnreachableError(address, plain_text(error)) from error

    async def close(self) -> None:
        """Close all connections after sending buffered data."""
        await self._dials.close()
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    async def _tls_context(self) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(None, self._tls.context)

    async def _dial(self, address: str) -> RemotingConnection:
        host, port = split_address(address)
        try:
            connection = await connect(
                host,
                port,
                self._on_commands,
                timeout_ms=self._connect_timeout_ms,
                tls=await self._tls_context(),
                server_name=self._tls.server_name if self._tls is not None else None,
            )
        except ConnectError as error:
            raise UnreachableError(address, plain_text(error)) from error
        try:
            if self._credentials is not None:
                # Before any other request.
                await self._sign(address, connection, self._credentials)
            await self._on_connected(address, connection)
        except BaseException:
            connection.close()
            raise
        connection.end_if_peer_vanishes(VANISHED_S)
        self._open[address] = connection
        return connection

    async def _sign(self, address: str, connection: RemotingConnection, credentials: Credentials) -> None:
        try:
            server = await credentials.sign_requests(connection, self._connect_timeout_ms)
        except TransportError as error:
            raise UnreachableError(address, plain_text(error)) from error
        wrong = None if server is None else self._wrong_server(address, server)
        if wrong is not None:
            raise UnreachableError(address, wrong)


def failure_of(
    connection: RemotingConnection, address: str, error: TransportError, waited_ms: int, timeout_ms: int
) -> ClientError:
    """Return the error of a request that the peer did not answer within `waited_ms`, or that could not be sent.

    The connection is aborted if the peer has sent nothing meanwhile: the process there may be stalled, and another one
    may have its address by now.
    """
    if not isinstance(error, RequestTimeoutError):
        return UnreachableError(address, plain_text(error))
    if _was_silent(connection, waited_ms):
        connection.abort()
    return AnswerTimeoutError(address, timeout_ms)


def _was_silent(connection: RemotingConnection, waited_ms: int) -> bool:
    """Whether the peer has sent nothing at all during a request."""
    return connection.last_bytes_age_s() * 1000 >= max(waited_ms - SILENCE_TOLERANCE_MS, SILENT_AT_LEAST_MS)


def plain_text(error: TransportError) -> str:
    """Return the cause of an error without the address, with which the transport's messages start."""
    return str(error).removeprefix(f"{error.address}: ")


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`, with IPv6 addresses in brackets. Raises UnreachableError."""
    host, _, port = address.strip().rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise UnreachableError(address, "the address is invalid: use host:port, such as 127.0.0.1:9876")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def own_address(name_servers: Sequence[str], timeout_ms: int) -> str:
    """Return this machine's address on the route to a NameServer (nothing is sent); loopback if there is no route."""
    try:
        if not name_servers:
            return "127.0.0.1"
        host, port = split_address(name_servers[0])
        # A name that cannot be resolved yet must not hold up the start.
        async with asyncio.timeout(timeout_ms / 1000):
            infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, _, _, _, target = infos[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0]).partition("%")[0]
    except (OSError, UnreachableError):  # TimeoutError is an OSError
        return "127.0.0.1"
