"""Members of one group in the test's process: real brokers on free ports, with links between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from delaymq.protocol.command import Command
from delaymq.replication.events import ConnectionLost, Received
from delaymq.replication.messages import Ack, Message
from delaymq.server.broker_server import BrokerServer
from delaymq.server.replication.handshake import Connecting, Identity
from delaymq.server.replication.links import Links
from delaymq.server.replication.message_codec import encode_message
from delaymq.server.replication.secret import GroupSecret
from delaymq.server.tls.outgoing import outgoing_tls
from delaymq.transport import RemotingConnection, connect

from delaymq_testing.broker.harness import broker_config
from delaymq_testing.running_server import BROKER_FIELDS, CONNECT_TIMEOUT_MS, HOST, until

SECRET = b"a secret of the tests"
GROUP = ("DefaultCluster", "broker-a")


class MemberServer:
    """One member: a broker server, its links, and the events that they report."""

    def __init__(self, path: Path, name: str, *, secret: bytes = SECRET, group: str = GROUP[1], **changes: Any) -> None:
        fields: dict[str, Any] = BROKER_FIELDS | {"fast_port_enable": False, "broker_name": group} | changes
        self.name = name
        self.config = broker_config(path / name, **fields)
        self.server = BrokerServer.open(self.config, http=False)
        self.secret_file = path / f"{name}.secret"
        self.secret_file.write_bytes(secret)
        self.events: list[Received | ConnectionLost] = []
        self.identity = Identity(GROUP[0], group, name, self.server.boot_id)
        self.links: Links | None = None
        self.is_stopped = False

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.server.port

    async def start(self, members: Mapping[str, tuple[str, int]], **options: Any) -> Links:
        """Listen and connect; without jitter, pauses have their full length."""

        async def tls(address: str) -> Any:
            return await outgoing_tls(self.config, address)

        options = {"on_event": self.events.append, "tls": tls, "jitter": lambda: 1.0} | options
        self.links = Links(self.identity, members, GroupSecret(str(self.secret_file)), **options)
        self.server.use_links(self.links)
        await self.server.start()
        self.links.start()
        return self.links

    async def stop(self) -> None:
        if not self.is_stopped:
            self.is_stopped = True
            if self.links is not None:
                await self.links.stop()
            await self.server.stop()

    def received(self, sender: str) -> list[Message]:
        return [each.message for each in self.events if isinstance(each, Received) and each.sender == sender]

    def lost(self, member: str) -> int:
        return self.events.count(ConnectionLost(member))


def linked(one: MemberServer, other: MemberServer) -> bool:
    """Whether each of two members can send to the other."""
    assert one.links is not None
    assert other.links is not None
    pairs = ((one.links, other), (other.links, one))
    return all(links.problem(peer.name) is None and links.receives_from(peer.name) for links, peer in pairs)


@asynccontextmanager
async def group(path: Path, *names: str, **changes: Any) -> AsyncIterator[list[MemberServer]]:
    """Members that are connected in both directions."""
    members = [MemberServer(path, name, **changes) for name in names]
    addresses = {member.name: member.address for member in members}
    try:
        for member in members:
            await member.start(addresses)
        await until(lambda: all(linked(one, other) for one in members for other in members if one is not other))
        yield members
    finally:
        for member in members:
            await member.stop()


class ForeignPeer:
    """A process that speaks the protocol of a link, honestly or not."""

    def __init__(self, connection: RemotingConnection, told: list[Command]) -> None:
        self.connection = connection
        self.told = told
        self.version = 0

    @classmethod
    async def connect(cls, port: int, tls: Any = None) -> ForeignPeer:
        told: list[Command] = []
        connection = await connect(
            HOST, port, lambda connection, commands: told.extend(commands), timeout_ms=CONNECT_TIMEOUT_MS, tls=tls
        )
        return cls(connection, told)

    async def hello(self, handshake: Connecting) -> Command:
        return await self.connection.request(handshake.hello(), CONNECT_TIMEOUT_MS)

    async def prove(self, handshake: Connecting) -> None:
        """Perform the handshake. LinkError if it fails."""
        certificate = self.connection.server_certificate_hash()
        second = handshake.answered(await self.hello(handshake), certificate)
        answer = await self.connection.request(second, CONNECT_TIMEOUT_MS)
        self.version = handshake.proven(answer).version

    def send(self, message: Message) -> None:
        self.connection.send(encode_message(message, self.version))

    async def ended(self) -> None:
        while not self.connection.closing:  # noqa: ASYNC110 - the scenario's time limit bounds it
            await asyncio.sleep(0.002)


def ack(number: int) -> Ack:
    return Ack(1, 1, number, number, 0)
