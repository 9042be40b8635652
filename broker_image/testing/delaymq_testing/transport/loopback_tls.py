"""A server that accepts both TLS and plaintext connections, and the behaviour of its peers."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from delaymq.protocol.command import Command, Response, encode_response
from delaymq.transport import ConnectionLimits, RemotingConnection
from delaymq.transport.connection import OnCommands
from delaymq.transport.tcp_socket import LINGER_RESET
from delaymq.transport.tls_acceptor import TlsAcceptor

HOST = "127.0.0.1"
BOUND_S = 60
NEVER_S = 600.0
HALF_HANDSHAKE = bytes.fromhex("16030100c8010000c40303")
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


def echo(connection: RemotingConnection, commands: list[Command]) -> None:
    for command in commands:
        connection.send(encode_response(command, Response(fields=command.fields, body=command.body)))


class Listening:
    def __init__(self, tls: TlsAcceptor) -> None:
        self.tls = tls
        self.port = 0
        self.opened: list[RemotingConnection] = []
        self.closed: list[RemotingConnection] = []


@asynccontextmanager
async def server(
    context: ssl.SSLContext,
    on_commands: OnCommands = echo,
    *,
    enforcing: bool = False,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[Listening]:
    async def given() -> ssl.SSLContext:
        return context

    listening = Listening(TlsAcceptor(given, enforcing=enforcing))
    bound = socket.create_server((HOST, 0))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
    serving = await asyncio.get_running_loop().create_server(
        lambda: RemotingConnection(
            on_commands,
            on_opened=listening.opened.append,
            on_closed=lambda connection, error: listening.closed.append(connection),
            limits=limits,
            tls=listening.tls,
        ),
        sock=bound,
    )
    listening.port = bound.getsockname()[1]
    try:
        yield listening
    finally:
        serving.close()
        listening.tls.close()
        for connection in listening.opened:
            connection.abort()
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - the scenario's time limit bounds it
        await asyncio.sleep(0.002)
