"""A server of connections on loopback, and what its peers do."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from delaymq.protocol.command import Command, Response, encode_response
from delaymq.transport import (
    ConnectionLimits,
    RemotingConnection,
)
from delaymq.transport.buffer_budget import BufferBudget
from delaymq.transport.connection import OnCommands
from delaymq.transport.tcp_socket import LINGER_RESET

HOST = "127.0.0.1"
BOUND_S = 10


def run(scenario: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scenario()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


@asynccontextmanager
async def server(
    on_commands: OnCommands, limits: ConnectionLimits | None = None, budget: BufferBudget | None = None
) -> AsyncIterator[tuple[int, list[RemotingConnection]]]:
    """A listening port and the connections it accepted."""
    accepted: list[RemotingConnection] = []
    listening = socket.create_server((HOST, 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
    serving = await asyncio.get_running_loop().create_server(
        lambda: RemotingConnection(on_commands, on_opened=accepted.append, limits=limits, budget=budget),
        sock=listening,
    )
    try:
        yield listening.getsockname()[1], accepted
    finally:
        serving.close()
        for connection in accepted:
            connection.abort()


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - the caller's time limit bounds it
        await asyncio.sleep(0.001)


def echo(connection: RemotingConnection, commands: list[Command]) -> None:
    for command in commands:
        connection.send(encode_response(command, Response(fields=command.fields, body=command.body)))


def never_answer(connection: RemotingConnection, commands: list[Command]) -> None:
    pass
