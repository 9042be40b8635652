"""TLS on the ports of plain connections: RocketMQ's clients, tools, broker and NameServer on the other side.

The servers' keys come from a tls.properties as RocketMQ reads it; its JVMs get the rest as system properties.
"""

import asyncio
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from certificates import Authority, Pair, write_pair
from delaymq.client import (
    Client,
    ClientOptions,
    ConsumeFrom,
    Message,
    Producer,
    PushConsumer,
    PushConsumerOptions,
    TlsOptions,
    UnreachableError,
)
from harness.brokers import (
    HOST,
    SMALL_HEAP,
    START_TIMEOUT_S,
    Cluster,
    OurCluster,
    RealCluster,
    RealNameServer,
    write_properties,
)
from harness.clients import Workbench
from harness.driver import JVM_OPTIONS, ClientError, Driver
from harness.processes import ServerProcess
from python_scenario import LIMIT_S, Collected, new_name, until

Start = Callable[..., Cluster]
HEAP = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True)
class Files:
    """An authority, a pair that all servers have, and one for clients."""

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
        """Of a client, or a broker towards NameServers, that verifies whom it talks to."""
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
            certificate_path=pair and pair.certificate,
            key_path=pair and pair.key,
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
    """Starts NameServer and broker of the tested kind with TLS keys; they end with the module."""
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
def java(keys: dict[str, str]) -> Iterator[Driver]:
    """A JVM whose clients and tools connect with TLS."""
    options = [f"-D{key}={value}" for key, value in {"tls.enable": "true", "tls.config.file": "/none", **keys}.items()]
    with Driver(jvm_options=(*JVM_OPTIONS, *options)) as driver:
        yield driver


@pytest.fixture(scope="module")
def insecure(isolated_network: None) -> Iterator[Driver]:
    """As RocketMQ's clients are with tls.enable=true and nothing else: they take any certificate."""
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


def run_python(cluster: Cluster, options: ClientOptions | None, scenario: Callable[[Client], object]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S), Client(cluster.namesrv_address, options) as client:
            await scenario(client)  # type: ignore[misc]

    asyncio.run(bounded())


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
@pytest.mark.parametrize("kind", ["insecure", "verifying"])
def test_java_s_clients_send_and_receive_over_tls(request: pytest.FixtureRequest, mode: str, kind: str) -> None:
    cluster: Cluster = request.getfixturevalue(mode)
    with workbench(request.getfixturevalue(kind), cluster) as clients:
        topic = clients.topic(queues=2)
        consumer = clients.push(topic, group=clients.group(), **{"from": "CONSUME_FROM_FIRST_OFFSET"})
        producer = clients.producer
        bodies = [b"x" * 20_000, *(b"%d" % n for n in range(20))]
        for body in bodies:
            assert producer.send(topic, body).status == "SEND_OK"
        got = consumer.inbox.wait_count(len(bodies), timeout_s=60)
        assert sorted(message.body for message in got) == sorted(bodies)


def test_plain_and_tls_clients_share_a_permissive_broker(
    permissive: Cluster, driver: Driver, verifying: Driver, files: Files
) -> None:
    with workbench(driver, permissive) as plain, workbench(verifying, permissive) as secure:
        topic = plain.topic(queues=2)
        consumers = [
            each.push(topic, group=each.group(), **{"from": "CONSUME_FROM_FIRST_OFFSET"}) for each in (plain, secure)
        ]
        plain.producer.send(topic, b"plain")
        secure.producer.send(topic, b"secure")

        async def scenario(client: Client) -> None:
            got = Collected()
            consumer = PushConsumer(client, new_name("Group"), got, PushConsumerOptions(consume_from=ConsumeFrom.FIRST))
            consumer.subscribe(topic)
            async with Producer(client) as producer, consumer:
                await producer.send(Message(topic=topic, body=b"python"))
                await until(lambda: len(got.messages) == 3)

        run_python(permissive, files.options(), scenario)
        for consumer in consumers:
            got = consumer.inbox.wait_count(3, timeout_s=60)
            assert {message.body for message in got} == {b"plain", b"secure", b"python"}


def test_plain_clients_are_closed_where_tls_is_a_must(enforcing: Cluster, driver: Driver, files: Files) -> None:
    with workbench(driver, enforcing) as clients, pytest.raises(ClientError):
        clients.producer.send("Refused", b"x")

    async def refused(client: Client) -> None:
        with pytest.raises(UnreachableError, match="takes only TLS"):
            await client.route("T")

    run_python(enforcing, None, refused)

    async def served(client: Client) -> None:
        async with Producer(client) as producer:
            assert (await producer.send(Message(topic=new_name("Topic"), body=b"y"))).queue_offset == 0

    run_python(enforcing, files.options(), served)


def test_mqadmin_works_over_tls(enforcing: Cluster, verifying: Driver, insecure: Driver) -> None:
    for driver in (verifying, insecure):
        shown = driver.mqadmin("clusterList", "-n", enforcing.namesrv_address)
        assert enforcing.broker_address in shown
        route = driver.mqadmin("brokerStatus", "-n", enforcing.namesrv_address, "-b", enforcing.broker_address)
        assert "bootTimestamp" in route


def test_clients_show_certificates_where_they_must(start: Start, files: Files, verifying: Driver) -> None:
    keys = {
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": str(files.authority.certificate),
    }
    # The broker needs one too where its NameServer asks for it.
    cluster = start("enforcing", files.server_keys() | files.client_keys(own=True) | keys)
    with workbench(verifying, cluster) as clients:
        topic = clients.topic()
        assert clients.producer.send(topic, b"known").status == "SEND_OK"
    with java(files.client_keys()) as nameless, workbench(nameless, cluster) as clients, pytest.raises(ClientError):
        clients.producer.send(topic, b"x")

    async def refused(client: Client) -> None:
        with pytest.raises(UnreachableError):
            await client.route(topic)

    run_python(cluster, files.options(), refused)

    async def served(client: Client) -> None:
        async with Producer(client) as producer:
            await producer.send(Message(topic=topic, body=b"y"))

    run_python(cluster, files.options(own=True), served)


def test_a_client_that_verifies_takes_no_stranger_s_certificate(
    permissive: Cluster, tmp_path: Path, isolated_network: None
) -> None:
    stranger = Authority(tmp_path, "stranger")
    keys = {"tls.test.mode.enable": "false", "tls.client.authServer": "true"}
    with (
        java({**keys, "tls.client.trustCertPath": str(stranger.certificate)}) as driver,
        workbench(driver, permissive) as clients,
        pytest.raises(ClientError),
    ):
        clients.producer.send("Refused", b"x")


def test_a_changed_certificate_is_shown_to_new_clients_and_no_message_is_lost(
    start: Start, files: Files, tmp_path: Path, verifying: Driver
) -> None:
    """While producers send; RocketMQ looks at its files twice a second, ours every two."""
    pair = Pair(tmp_path / "tls.crt", tmp_path / "tls.key")
    write_pair(pair, files.servers.certificate.read_bytes(), files.servers.key.read_bytes())
    cluster = start("enforcing", files.server_keys(pair) | files.client_keys())
    renewed = files.authority.issue(HOST, days=60, file="renewed")
    host, port = cluster.broker_address.split(":")

    def shown() -> bytes:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(files.authority.certificate)
        with (
            socket.create_connection((host, int(port)), 10) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as secure,
        ):
            return secure.getpeercert(True) or b""

    with workbench(verifying, cluster) as clients:
        topic = clients.topic(queues=2)
        consumer = clients.push(topic, group=clients.group(), **{"from": "CONSUME_FROM_FIRST_OFFSET"})
        before = shown()
        write_pair(pair, renewed.certificate.read_bytes(), renewed.key.read_bytes())
        sent = 0
        deadline = time.monotonic() + 60
        while shown() == before or sent < 200:
            assert time.monotonic() < deadline, "the certificate was not read again"
            assert clients.producer.send(topic, b"%d" % sent).status == "SEND_OK"
            sent += 1
        clients.new_producer().send(topic, b"%d" % sent)  # a connection of its own
        got = consumer.inbox.wait_count(sent + 1, timeout_s=60)
        assert sorted(int(message.body) for message in got) == list(range(sent + 1))


def our_namesrv(folder: Path, port: int, keys: dict[str, str]) -> ServerProcess:
    conf = write_properties(folder / "our-namesrv.conf", keys)
    command = [sys.executable, "-m", "delaymq", "namesrv", "--host", HOST, "--namesrv-port", str(port)]
    return ServerProcess(
        "our NameServer",
        [*command, "-c", str(conf), "--store-path", str(folder)],
        folder / "namesrv.log",
        environment={},
    )


class OurNameServer:
    """Beside the real broker, in RealNameServer's place."""

    def __init__(self, folder: Path, port: int, keys: dict[str, str]) -> None:
        self.process = our_namesrv(folder, port, keys)

    def start(self) -> None:
        self.process.start()
        self.process.wait_until(lambda: "NameServer listens" in self.process.log_since(0), timeout_s=START_TIMEOUT_S)


def test_our_broker_registers_at_the_real_name_server_over_tls(files: Files, tmp_path: Path, verifying: Driver) -> None:
    keys = files.server_keys() | files.client_keys()
    path = write_properties(tmp_path / "tls.properties", keys)
    cluster = OurCluster(config={"tls.server.mode": "enforcing", "tls.config.file": str(path)}, real_namesrv=True)
    options = jvm_options("enforcing", path, *HEAP)
    cluster.namesrv = RealNameServer(cluster.base_path, cluster.namesrv_port, jvm_options=options)
    with cluster, workbench(verifying, cluster) as clients:
        topic = clients.topic()
        assert clients.producer.send(topic, b"x").status == "SEND_OK"


def test_the_real_broker_registers_at_our_name_server_over_tls(files: Files, tmp_path: Path, verifying: Driver) -> None:
    keys = files.server_keys() | files.client_keys()
    cluster = real_cluster("enforcing", write_properties(tmp_path / "tls.properties", keys))
    of_namesrv = files.server_keys() | {"tls.server.mode": "enforcing"}
    cluster.namesrv = OurNameServer(tmp_path, cluster.namesrv_port, of_namesrv)  # type: ignore[assignment]
    with cluster, workbench(verifying, cluster) as clients:
        topic = clients.topic()
        assert clients.producer.send(topic, b"x").status == "SEND_OK"
        shown = verifying.mqadmin("clusterList", "-n", cluster.namesrv_address)
        assert cluster.broker_address in shown
