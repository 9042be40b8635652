"""A replicated group in the test's process: brokers on free ports, and a register in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from delaymq.replication import Record, Settings
from delaymq.server.broker_server import BrokerServer
from delaymq.server.listening import Ports
from delaymq.server.registers import Conflict, Content, Outcome, RegisterError, Unknown, Written
from delaymq.server.replication.replica import Membership, Replica
from delaymq.server.replication.secret import GroupSecret

from delaymq_testing.broker.harness import broker_config
from delaymq_testing.running_server import BROKER_FIELDS, HOST, until

SECRET = b"a secret of the tests"
SEGMENT_BYTES = 1 << 18


class MemoryRegister:
    """A linearizable register, without a record if there are no founders.

    While it is down, reads fail and the outcome of writes is unknown.
    """

    def __init__(self, *founders: str, is_down: bool = False) -> None:
        self.version = 1
        self.content = Record(0, "", 0, frozenset(founders)) if founders else None
        self.is_down = is_down

    def delete(self) -> None:
        """Delete the record."""
        self.version += 1
        self.content = None

    @property
    def record(self) -> Record:
        """The content, which must be a record."""
        assert self.content is not None
        return self.content

    async def read(self, timeout_s: float) -> Content:
        await asyncio.sleep(0)
        if self.is_down:
            raise RegisterError("the register is down")
        return Content(str(self.version), self.content)

    async def write(self, record: Record, expected: str, timeout_s: float) -> Outcome:
        await asyncio.sleep(0)
        if self.is_down:
            return Unknown("the register is down")
        if expected != str(self.version):
            return Conflict()
        self.version += 1
        self.content = record
        return Written(str(self.version))

    async def close(self) -> None:
        pass


class GroupMember:
    """A member, which restarts in the same process when its replication requires that."""

    def __init__(self, group: Group, name: str, port: int) -> None:
        self.group = group
        self.name = name
        self.port = port
        self.server: BrokerServer | None = None
        self.restarts: list[str] = []
        self._restarting: asyncio.Task[None] | None = None

    @property
    def path(self) -> Path:
        return self.group.path / self.name

    @property
    def running(self) -> BrokerServer:
        assert self.server is not None
        return self.server

    @property
    def replica(self) -> Replica:
        replica = self.running.replica
        assert replica is not None
        return replica

    @property
    def is_master(self) -> bool:
        return self.server is not None and self.replica.is_master

    async def start(self) -> None:
        group = self.group
        fields: dict[str, Any] = BROKER_FIELDS | {
            "fast_port_enable": False, "listen_port": self.port, "mapped_file_size_commit_log": SEGMENT_BYTES,
        } | group.changes  # fmt: skip
        server = BrokerServer.open(broker_config(self.path, **fields), http=group.http, follows=True)
        secret = group.path / "secret"
        secret.write_bytes(SECRET)
        membership = Membership(
            name=self.name, members=group.addresses, secret=GroupSecret(str(secret)), settings=group.settings
        )
        endpoints = PublishedAddress(self) if group.publishes else None
        server.replica = Replica(server, membership, group.register, self._restart, endpoints)
        self.server = server
        await server.start()

    def _restart(self, reason: str, action: Callable[[], None] | None) -> None:
        self.restarts.append(reason)
        self._restarting = asyncio.create_task(self._restarted(action))

    async def _restarted(self, action: Callable[[], None] | None) -> None:
        await self.stop()
        if action is not None:
            action()
        await self.start()

    async def stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            await server.stop()

    async def abandon(self) -> None:
        """Stop without writing any table, as a killed process does."""
        server, self.server = self.server, None
        if server is not None:
            server.broker.close = server.broker.store.abandon
            await server.stop()

    def isolate(self) -> None:
        """Cut the member off from the others and from the register, until it is restarted."""
        self.replica.links.set_members({})
        self.replica.driver.register = MemoryRegister(is_down=True)


class PublishedAddress:
    """Records which member published its address, in which epoch."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member
        self.problem = ""

    def publish(self, epoch: int) -> None:
        self._member.group.published.append((self._member.name, epoch))
        self.problem = self._member.group.unpublished

    async def stop(self) -> None:
        pass


class Group:
    """Members by name."""

    def __init__(self, path: Path, names: str, settings: Settings, changes: dict[str, Any]) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.settings = settings
        self.changes = changes
        self.register = MemoryRegister(names[0])
        self.http = False
        """Whether the members serve HTTP."""
        self.publishes = False
        """Whether the members share an address, which masters publish."""
        self.published: list[tuple[str, int]] = []
        """Masters that published their addresses, with their epochs."""
        self.unpublished = ""
        """Why addresses are not published."""
        ports = {name: _free_port() for name in names}
        self.addresses = {name: (HOST, port) for name, port in ports.items()}
        self.members = {name: GroupMember(self, name, port) for name, port in ports.items()}

    def __getitem__(self, name: str) -> GroupMember:
        return self.members[name]

    @property
    def master(self) -> GroupMember | None:
        """The member that acts in the newest epoch."""
        masters = [member for member in self.members.values() if member.is_master]
        return max(masters, key=lambda each: each.replica.driver.member.epoch, default=None)

    def _is_in_sync(self, names: frozenset[str]) -> bool:
        return self.register.content is not None and self.register.content.in_sync == names

    async def in_sync(self, *names: str) -> GroupMember:
        """Wait until exactly these members are in sync, and return the master."""
        await until(lambda: self._is_in_sync(frozenset(names)) and self.master is not None)
        assert self.master is not None
        return self.master


async def delete_old_segments(member: GroupMember) -> None:
    """Delete all segments but the last one, as an hour later."""
    store = member.running.broker.store
    await until(lambda: store.flushed_offset == store.end_offset)
    while store.clean(member.running.broker.now_ms() + 2 * 3_600_000, at_any_hour=True):
        pass
    await until(lambda: member.replica.driver.member.log.begin == store.min_offset)
    assert store.end_offset - store.min_offset < 2 * SEGMENT_BYTES


def _free_port() -> int:
    ports = Ports.bind(broker_config(Path("/nonexistent"), **(BROKER_FIELDS | {"fast_port_enable": False})), http=False)
    port: int = ports.main.getsockname()[1]
    ports.close()
    return port


@asynccontextmanager
async def replicated(
    path: Path,
    names: str,
    settings: Settings = Settings(),  # noqa: B008
    *,
    publishes: bool = False,
    http: bool = False,
    **changes: Any,
) -> AsyncIterator[Group]:
    """A group whose members are in sync; the first one founds it."""
    group = Group(path, names, settings, changes)
    group.publishes, group.http = publishes, http
    try:
        for member in group.members.values():
            await member.start()
        await group.in_sync(*names)
        yield group
    finally:
        for member in group.members.values():
            await member.stop()
