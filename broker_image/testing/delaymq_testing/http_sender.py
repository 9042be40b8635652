"""Sends over HTTP to a broker in the test's process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from delaymq.message.ids import parse_offset_message_id
from delaymq.message.record import Record
from delaymq.server.broker_server import BrokerServer

from delaymq_testing.running_server import HOST, standalone


class Sender:
    """Sends over HTTP to a broker of the test's process."""

    def __init__(self, server: BrokerServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.broker = server.broker
        self.session = session
        self.url = f"http://{HOST}:{server.http_port}/api/v1/"

    async def post(self, topic: str, body: object, **headers: str) -> tuple[int, Any]:
        """Status and JSON of the response."""
        url = f"{self.url}topics/{quote(topic, safe='')}/messages"
        async with self.session.post(url, json=body, headers=headers) as answer:
            if answer.status == 503:
                assert answer.headers["Retry-After"] == "1"
            return answer.status, await answer.json()

    async def refused(self, topic: str, body: object) -> tuple[int, str, str]:
        """Status, code and message of an error; nothing was stored."""
        end = self.broker.store.end_offset
        status, answer = await self.post(topic, body)
        assert self.broker.store.end_offset == end
        return status, answer["error"]["code"], answer["error"]["message"]

    async def until_status(self, status: int, body: object) -> str | None:
        """Repeats a send until it has this result; the code of the error."""
        while True:
            got, answer = await self.post("Orders", body)
            if got == status:
                return answer["error"]["code"] if "error" in answer else None
            await asyncio.sleep(0.002)

    def record(self, offset_message_id: str) -> Record:
        """The record of an accepted message."""
        found = self.broker.store.record_at(parse_offset_message_id(offset_message_id)[2])
        assert found is not None
        return found


@asynccontextmanager
async def sender(path: Path, **changes: Any) -> AsyncIterator[Sender]:
    async with standalone(path, http=True, **changes) as server, aiohttp.ClientSession() as session:
        yield Sender(server.broker, session)
