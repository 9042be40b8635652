"""Brokers with plain slaves, and slaves that speak RocketMQ's HA protocol."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from delaymq.protocol.ha import RangeReader, encode_report
from delaymq.server.broker_server import BrokerServer
from delaymq.server.ha.plain_slave import FollowStatus
from delaymq.server.ha.slaves import SlaveStatus

from delaymq_testing.broker.harness import broker_config
from delaymq_testing.running_server import BROKER_FIELDS, HOST, BrokerPeer

SEGMENT_BYTES = 64 << 10
FIELDS: dict[str, Any] = {
    **BROKER_FIELDS,
    "ha_plain_slaves": True,
    "ha_plain_slave_addresses": HOST,
    "ha_listen_port": 0,
    "ha_transfer_batch_size": 1_024,
    "mapped_file_size_commit_log": SEGMENT_BYTES,
    "max_message_size": 32 << 10,
    "ha_send_heartbeat_interval": 100,
}


@asynccontextmanager
async def serving(path: Path, **changes: Any) -> AsyncIterator[BrokerServer]:
    server = BrokerServer.open(broker_config(path, **(FIELDS | changes)), http=False)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class Slave:
    """A slave that appends to a buffer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begin: int = 0) -> None:
        self.reader, self.writer = reader, writer
        self.ranges = RangeReader()
        self.begin = begin
        self.data = bytearray()
        self.heartbeats = 0
        self.sizes: list[int] = []

    @classmethod
    async def connect(cls, server: BrokerServer, report: int | None = 0) -> "Slave":
        slave = cls(*await asyncio.open_connection(HOST, server.broker.ha_port), begin=report or 0)
        if report is not None:
            slave.writer.write(encode_report(report))
        return slave

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    async def receive(self, end: int, *, acknowledges: bool = True) -> None:
        while self.end < end:
            data = await self.reader.read(1 << 16)
            assert data, "the connection was closed"
            for offset, part in self.ranges.feed(data):
                if not self.data and not self.begin:
                    self.begin = offset
                assert offset == self.end
                self.data += part
                self.heartbeats += not part
                self.sizes.append(len(part))
            if acknowledges:
                self.acknowledge()

    def acknowledge(self) -> None:
        self.writer.write(encode_report(self.end))

    async def is_closed(self) -> bool:
        try:
            while await self.reader.read(1 << 20):
                pass
        except ConnectionError:
            pass
        self.writer.close()
        return True


def connected(server: BrokerServer) -> list[SlaveStatus]:
    assert server.plain_slaves is not None
    return server.plain_slaves.status()


async def store_messages(server: BrokerServer, count: int, size: int = 3_000) -> None:
    peer = await BrokerPeer.connect(server.port)
    for _ in range(count):
        assert (await peer.send("T", os.urandom(size))).code == 0
    peer.connection.close()


def log_bytes(server: BrokerServer) -> bytes:
    folder = Path(server.broker.store.path) / "commitlog"
    data = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    store = server.broker.store
    return data[: store.end_offset - store.min_offset]


def following(master: BrokerServer, **changes: Any) -> dict[str, Any]:
    """Return the settings of a plain slave of `master`."""
    return {
        "broker_role": "SLAVE",
        "ha_plain_slaves": False,
        "ha_master_address": f"{HOST}:{master.broker.ha_port}",
        "ha_master_broker_address": f"{HOST}:{master.port}",
        **changes,
    }


def status(server: BrokerServer) -> FollowStatus:
    assert server.plain_slave is not None
    return server.plain_slave.status
