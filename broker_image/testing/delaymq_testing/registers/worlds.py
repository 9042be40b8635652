"""A register of either kind with a fake backend behind a faulty server."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from delaymq.replication import Record
from delaymq.server.registers.etcd import EtcdRegister
from delaymq.server.registers.lease import LeaseRegister
from delaymq.server.registers.register import Register
from delaymq.server.registers.service_account import ServiceAccount

from delaymq_testing.certificates import Authority
from delaymq_testing.registers.backends import LEASE, NAMESPACE, FakeApiServer, FakeEtcd, Recording
from delaymq_testing.registers.faulty_http import FaultyServer

KINDS = ("etcd", "lease")
KEY = "/delaymq/DefaultCluster/broker-a/register"
TIMEOUT_S = 10.0
"""For requests that receive a response."""
SHORT_S = 0.5
"""For requests that receive none, but have to arrive on a busy machine."""
FROZEN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
"""A clock that does not advance, so that equal records are equal objects."""


def record(epoch: int = 1, incarnation: int = 1, master: str = "broker-a-0") -> Record:
    """A record of a group of two members."""
    return Record(epoch, master, incarnation, frozenset({"broker-a-0", "broker-a-1"}))


class World:
    """One backend and its server, and registers that use them."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.backend: Recording = FakeEtcd() if kind == "etcd" else FakeApiServer()
        self.server = FaultyServer(self.backend, late_s=SHORT_S * 3)
        self.folder = folder
        self._stack = AsyncExitStack()

    def open(self) -> Register:
        """Return another register, as another process would open it."""
        register: Register
        if self.kind == "etcd":
            register = EtcdRegister([self.server.url], KEY)
        else:
            account = ServiceAccount(self.folder)
            register = LeaseRegister(self.server.url, NAMESPACE, LEASE, account, lease_s=10, now=lambda: FROZEN)
        self._stack.push_async_callback(register.close)
        return register

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        write_account(self.folder)
        async with self.server.running(), self._stack:
            yield self


def write_account(folder: Path, token: str = "valid") -> None:
    """Write the files of a service account."""
    (folder / "token").write_text(token + "\n")
    (folder / "ca.crt").write_bytes(Authority(folder / "authority").certificate.read_bytes())
