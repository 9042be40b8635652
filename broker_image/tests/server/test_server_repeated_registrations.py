"""Over sockets: replayed registrations do not end a live broker's routes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from delaymq.config import NamesrvConfig
from delaymq.protocol.bodies import DataVersion, RegisterBody, TopicConfig, TopicTable
from delaymq.protocol.command import Command, request_command
from delaymq.server.namesrv_server import NamesrvServer
from delaymq.transport import RemotingConnection
from delaymq_testing.running_server import HOST, run, until

STRANGER = "127.0.0.2"
NAMES = {"brokerName": "b", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}


@asynccontextmanager
async def name_server(**changes: Any) -> AsyncIterator[NamesrvServer]:
    server = NamesrvServer(NamesrvConfig(listen_port=0, kv_config_path="", **changes))
    await server.start(http=False)
    try:
        yield server
    finally:
        await server.stop()


async def dial(server: NamesrvServer, host: str = HOST) -> RemotingConnection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(RemotingConnection, HOST, server.port, local_addr=(host, 0))
    return connection


async def ask(connection: RemotingConnection, code: int) -> Command:
    table = TopicTable(DataVersion(1, 7), {"T": TopicConfig("T")})
    body = RegisterBody(table).encode() if code == 103 else b""
    return await connection.request(request_command(code, NAMES | {"haServerAddr": ""}, body))


async def registered(server: NamesrvServer, host: str = HOST) -> RemotingConnection:
    connection = await dial(server, host)
    assert (await ask(connection, 103)).code == 0
    return connection


async def close(server: NamesrvServer, *connections: RemotingConnection) -> None:
    left = len(server.sessions) - len(connections)
    for each in connections:
        each.close()
    await until(lambda: len(server.sessions) == left)


def test_many_connections_do_not_displace_the_brokers() -> None:
    async def scenario() -> None:
        async with name_server(route_grace_ms=0) as server:
            broker = await registered(server)
            strangers = [await registered(server, host) for host in (STRANGER, HOST) for _ in range(8)]
            again = await registered(server)
            await close(server, broker, *strangers)
            assert server.namesrv.routes.route("T") is not None
            await close(server, again)
            assert server.namesrv.routes.route("T") is None

    run(scenario)


def test_stranger_cannot_unregister_a_reconnecting_broker() -> None:
    async def scenario() -> None:
        async with name_server() as server:
            broker = await registered(server)
            await close(server, broker)
            stranger = await registered(server, STRANGER)
            answer = await ask(stranger, 104)
            assert (answer.code, "or was recently registered from another host" in str(answer.remark)) == (1, True)
            again = await registered(server)
            await close(server, stranger)
            assert server.namesrv.routes.route("T") is not None
            await close(server, again)

    run(scenario)
