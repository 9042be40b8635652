"""A broker in this process with a client of its port and one of its HTTP API."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from delaymq.broker.broker import Broker
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.server.broker_server import BrokerServer

from delaymq_testing.running_server import HOST, BrokerPeer, standalone

TOKEN = "t0ken"


class Asked:
    """A broker, a client of it, and HTTP."""

    def __init__(self, server: Any, peer: BrokerPeer, session: aiohttp.ClientSession) -> None:
        self.server: BrokerServer = server.broker
        self.broker: Broker = server.broker.broker
        self.peer = peer
        self._session = session
        self.http_port: int = server.broker.http_port
        self._url = f"http://{HOST}:{self.http_port}/api/v1/"

    async def get(self, path: str, status: int = 200) -> Any:
        async with self._session.get(self._url + path) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json()

    async def metrics(self) -> str:
        async with self._session.get(f"http://{HOST}:{self.http_port}/metrics") as answer:
            assert answer.status == 200
            return await answer.text()

    async def post(self, path: str, body: object, status: int = 200) -> Any:
        async with self._session.post(self._url + path, json=body) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json()

    async def put(self, path: str, body: object, status: int = 200) -> Any:
        async with self._session.put(self._url + path, json=body) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json()

    async def send_back(self, group: str, offset: int, level: int = 0) -> None:
        fields = {"offset": str(offset), "group": group, "delayLevel": str(level), "maxReconsumeTimes": "16"}
        assert (
            await self.peer.connection.request(request_command(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
        ).code == 0

    async def commit(self, group: str, topic: str, offset: int) -> None:
        fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
        command = request_command(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert (await self.peer.connection.request(command)).code == 0


@asynccontextmanager
async def asked(path: Path, **changes: Any) -> AsyncIterator[Asked]:
    # With access control, nothing is open to programs of this machine.
    token = {"http_token": TOKEN} if changes.get("acl_enable") else {}
    headers = {"Authorization": f"Bearer {TOKEN}"} if token else None
    async with (
        standalone(path, http=True, **({"message_delay_level": "1s 1h 1s"} | token | changes)) as server,
        aiohttp.ClientSession(headers=headers) as session,
    ):
        yield Asked(server, await BrokerPeer.connect(server.broker.port), session)
