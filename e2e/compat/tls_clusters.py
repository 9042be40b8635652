"""NameServers and brokers with TLS, and JVMs whose clients connect to them, as fixtures.

The servers' keys come from a tls.properties in RocketMQ's form; RocketMQ's JVMs get the rest as system properties.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from compat.python_scenario import LIMIT_S
from delaymq.client import (
    Client,
    ClientOptions,
    TlsOptions,
)
from delaymq_testing.certificates import Authority, Pair
from harness.brokers import (
    HOST,
    SMALL_HEAP,
    Cluster,
    OurCluster,
    RealCluster,
    RealNameServer,
    write_properties,
)
from harness.clients import Workbench
from harness.driver import JVM_OPTIONS, Driver
from harness.java import ClientProfile

Start = Callable[..., Cluster]
HEAP = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True)
class Files:
    """A certificate authority, a key pair for all servers, and one for clients."""

    authority: Authority
    servers: Pair
    clients: Pair

    def server_keys(self, pair: Pair | None = None) -> dict[str, str]:
        shown = pair or self.servers
        return {
            "tls.test.mode.enable": "false",
            "tls.server.certPath": str(shown.certificate),
            "tls.server.keyPath": str(shown.key),
        }

    def client_keys(self, *, own: bool = False) -> dict[str, str]:
        """Return keys of a client, or of a broker that connects to NameServers, which verifies its peer."""
        keys = {
            "tls.test.mode.enable": "false",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": str(self.authority.certificate),
        }
        if own:
            keys |= {"tls.client.certPath": str(self.clients.certificate), "tls.client.keyPath": str(self.clients.key)}
        return keys

    def options(self, *, own: bool = False) -> ClientOptions:
        pair = self.clients if own else None
        tls = TlsOptions(
            ca_path=self.authority.certificate,
            certificate_path=pair.certificate if pair else None,
            key_path=pair.key if pair else None,
        )
        return ClientOptions(tls=tls, connect_timeout_ms=30_000, request_timeout_ms=30_000)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    return Files(authority, authority.issue(HOST), authority.issue("client.example"))


def jvm_options(mode: str, keys: Path, *heap: str) -> tuple[str, ...]:
    return (*heap, f"-Dtls.server.mode={mode}", f"-Dtls.config.file={keys}")


def real_cluster(mode: str, keys: Path) -> RealCluster:
    options = jvm_options(mode, keys, *SMALL_HEAP)
    cluster = RealCluster(jvm_options=options)
    cluster.namesrv = RealNameServer(cluster.base_path, cluster.namesrv_port, jvm_options=options)
    return cluster


def our_cluster(mode: str, keys: Path, **more: str) -> OurCluster:
    return OurCluster(config={"tls.server.mode": mode, "tls.config.file": str(keys), **more})


@pytest.fixture(scope="module")
def start(against: str, isolated_network: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Provide a function that starts NameServer and broker of the tested kind with TLS keys, until the module ends."""
    with ExitStack() as stack:

        def starting(mode: str, keys: dict[str, str]) -> Cluster:
            path = write_properties(tmp_path_factory.mktemp("keys") / "tls.properties", keys)
            return stack.enter_context(our_cluster(mode, path) if against == "ours" else real_cluster(mode, path))

        yield starting


@pytest.fixture(scope="module")
def permissive(start: Start, files: Files) -> Cluster:
    return start("permissive", files.server_keys())


@pytest.fixture(scope="module")
def enforcing(start: Start, files: Files) -> Cluster:
    return start("enforcing", files.server_keys() | files.client_keys())


@contextmanager
def java(keys: dict[str, str], profile: ClientProfile = "client") -> Iterator[Driver]:
    """Provide a JVM whose clients and tools connect with TLS."""
    options = [f"-D{key}={value}" for key, value in {"tls.enable": "true", "tls.config.file": "/none", **keys}.items()]
    with Driver(jvm_options=(*JVM_OPTIONS, *options), profile=profile) as driver:
        yield driver


@pytest.fixture(scope="module")
def insecure(isolated_network: None) -> Iterator[Driver]:
    """Provide clients as RocketMQ's are with only tls.enable=true: they accept any certificate."""
    with java({}) as driver:
        yield driver


@pytest.fixture(scope="module")
def verifying(isolated_network: None, files: Files) -> Iterator[Driver]:
    with java(files.client_keys(own=True)) as driver:
        yield driver


@contextmanager
def workbench(driver: Driver, cluster: Cluster) -> Iterator[Workbench]:
    made = Workbench(driver, namesrv_address=cluster.namesrv_address, broker_address=cluster.broker_address)
    try:
        yield made
    finally:
        made.close()


def run_python(
    cluster: Cluster, options: ClientOptions | None, scenario: Callable[[Client], Coroutine[Any, Any, object]]
) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S), Client(cluster.namesrv_address, options) as client:
            await scenario(client)

    asyncio.run(bounded())
