"""NameServer and broker in the test's process, on free ports, and peers that speak the protocol."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
from delaymq.config import NamesrvConfig
from delaymq.message.properties import format_properties
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command
from delaymq.server.standalone import Standalone
from delaymq.transport import RemotingConnection, connect

from delaymq_testing.broker.harness import broker_config

HOST = "127.0.0.1"
BOUND_S = 60
CONNECT_TIMEOUT_MS = 20_000
"""A shared machine may stall for longer than the usual 3 s."""
BROKER_FIELDS = {"listen_port": 0, "http_port": 0, "auto_create_topic_enable": True}


def run(scenario: Callable[[], Coroutine[Any, Any, None]], *, bound_s: float = BOUND_S) -> None:
    """Runs it on the loop that servers use, with a time limit."""

    async def bounded() -> None:
        async with asyncio.timeout(bound_s):
            await scenario()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


@asynccontextmanager
async def standalone(path: Path, *, http: bool = False, **changes: Any) -> AsyncIterator[Standalone]:
    """Both servers over `path`; keys that begin with namesrv_ go to the NameServer."""
    for_namesrv: dict[str, Any] = {
        key.removeprefix("namesrv_"): value for key, value in changes.items() if key.startswith("namesrv_")
    }
    for_broker = {key: value for key, value in changes.items() if not key.startswith("namesrv_")}
    namesrv_config = NamesrvConfig(**{"listen_port": 0, "kv_config_path": "", **for_namesrv})
    server = Standalone(broker_config(path, **(BROKER_FIELDS | for_broker)), namesrv_config)
    await server.start(http=http)
    try:
        await until(lambda: server.broker.registration.is_registered)
        yield server
    finally:
        await server.stop()


async def until(condition: Callable[[], object]) -> None:
    """Waits; the scenario's time limit bounds it."""
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.002)


class BrokerPeer:
    """A client's connection to a broker."""

    def __init__(self, connection: RemotingConnection, told: list[Command]) -> None:
        self.connection = connection
        self.told = told
        """Requests of the broker."""

    @classmethod
    async def connect(cls, port: int) -> "BrokerPeer":
        told: list[Command] = []
        connection = await connect(
            HOST, port, lambda connection, commands: told.extend(commands), timeout_ms=CONNECT_TIMEOUT_MS
        )
        return cls(connection, told)

    async def send(self, topic: str, body: bytes = b"x", *, sys_flag: int = 0, **properties: Any) -> Command:
        return await self.connection.request(send_command(topic, body, sys_flag=sys_flag, **properties))

    def pull(self, topic: str, offset: int, *, queue_id: int = 0, wait_ms: int = 20_000) -> asyncio.Future[Command]:
        fields = {
            "consumerGroup": "G",
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": str(wait_ms),
            "subscription": "*",
            "subVersion": "1",
            "expressionType": "TAG",
        }
        return self.connection.start_request(request_command(RequestCode.PULL_MESSAGE, fields), wait_ms + 10_000)


def send_command(topic: str, body: bytes = b"x", *, queue_id: int = 0, sys_flag: int = 0, **properties: str) -> Command:
    """Request 310."""
    fields = {
        "a": "P",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": str(sys_flag),
        "g": "1700000000000",
        "h": "0",
        "i": format_properties(properties),
    }
    return request_command(RequestCode.SEND_MESSAGE_V2, fields, body)
