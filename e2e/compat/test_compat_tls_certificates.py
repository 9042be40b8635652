"""Required client certificates, and changed server certificates, with RocketMQ on the other side."""

# ruff: noqa: F811 - imported fixtures are requested by name

import socket
import ssl
import time
from pathlib import Path

import pytest
from compat.tls_clusters import (  # noqa: F401
    Files,
    Start,
    enforcing,
    files,
    java,
    run_python,
    start,
    verifying,
    workbench,
)
from delaymq.client import (
    Client,
    Message,
    Producer,
    UnreachableError,
)
from delaymq_testing.certificates import Pair, write_pair
from harness.brokers import (
    HOST,
)
from harness.driver import ClientError, Driver


def test_clients_must_present_certificates_if_required(start: Start, files: Files, verifying: Driver) -> None:
    keys = {
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": str(files.authority.certificate),
    }
    # The broker needs one as well if its NameServer requires it.
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


def test_changed_certificate_is_presented_to_new_clients_and_no_message_is_lost(
    start: Start, files: Files, tmp_path: Path, verifying: Driver
) -> None:
    """While producers send; RocketMQ checks its files twice per second, DelayMQ every two seconds."""
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
        clients.new_producer().send(topic, b"%d" % sent)  # on a new connection
        got = consumer.inbox.wait_count(sent + 1, timeout_s=60)
        assert sorted(int(message.body) for message in got) == list(range(sent + 1))
