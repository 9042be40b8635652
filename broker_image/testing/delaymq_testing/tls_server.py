"""Servers with TLS in the test's process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from delaymq_testing.certificates import Pair
from delaymq_testing.running_server import standalone


class Ports(NamedTuple):
    namesrv: int
    broker: int


class TlsServer:
    """NameServer and broker with one certificate."""

    def __init__(self, path: Path, pair: Pair, mode: str) -> None:
        self._path = path
        self._starts = 0
        self._keys: dict[str, Any] = {
            "tls_server_cert_path": str(pair.certificate),
            "tls_server_key_path": str(pair.key),
            "tls_server_mode": mode,
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Ports]:
        self._starts += 1
        of_namesrv: dict[str, Any] = {f"namesrv_{key}": value for key, value in self._keys.items()}
        async with standalone(self._path / str(self._starts), **self._keys, **of_namesrv) as server:
            yield Ports(server.namesrv.port, server.broker.port)
