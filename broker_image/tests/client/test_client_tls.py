"""Client and commands over TLS, against DelayMQ servers."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from delaymq.client import (
    Client,
    ClientError,
    ClientOptions,
    ConsumeFrom,
    Message,
    Producer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
    TlsFilesError,
    TlsOptions,
)
from delaymq_testing.certificates import Authority, Pair, write_pair
from delaymq_testing.tls_server import TlsServer

BOUND_S = 60
HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> TlsServer:
    return TlsServer(tmp_path_factory.mktemp("server"), authority.issue(HOST), "enforcing")


def run(scenario: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scenario()

    asyncio.run(bounded())


def options(tls: TlsOptions | None) -> ClientOptions:
    return ClientOptions(tls=tls, connect_timeout_ms=20_000, request_timeout_ms=20_000)


def test_messages_go_over_tls_to_nameserver_and_broker(server: TlsServer, authority: Authority) -> None:
    async def scenario() -> None:
        got: list[bytes] = []

        async def take(message: ReceivedMessage) -> None:
            got.append(message.body)

        async with server.running() as ports:
            tls = TlsOptions(ca_path=authority.certificate)
            async with Client(f"{HOST}:{ports.namesrv}", options(tls)) as client, Producer(client) as producer:
                consumer = PushConsumer(client, "g", take, PushConsumerOptions(consume_from=ConsumeFrom.FIRST))
                consumer.subscribe("Secret")
                async with consumer:
                    for n in range(20):
                        await producer.send(Message(topic="Secret", body=b"%d" % n))
                    while len(got) < 20:  # noqa: ASYNC110 - bounded by the scenario's limit
                        await asyncio.sleep(0.01)
            assert sorted(got) == sorted(b"%d" % n for n in range(20))

    run(scenario)


def test_tls_mismatch_is_explained_on_each_side(server: TlsServer, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger").certificate
    cases = (
        (None, "accepts only TLS"),
        (TlsOptions(ca_path=stranger), "not trusted"),
        (TlsOptions(), "not trusted"),
        (TlsOptions(ca_path=authority.certificate, server_name="other.example"), "for another name"),
        (TlsOptions(ca_path=tmp_path / "none.crt"), "cannot be read"),
    )

    async def scenario() -> None:
        async with server.running() as ports:
            for tls, said in cases:
                async with Client(f"{HOST}:{ports.namesrv}", options(tls)) as client:
                    with pytest.raises(ClientError, match=said):
                        await client.route("T")
            async with Client(f"{HOST}:{ports.namesrv}", options(TlsOptions(insecure=True))) as client:
                with pytest.raises(ClientError, match="no broker"):
                    await client.route("NoSuchTopic")

    run(scenario)


def test_unusable_files_are_named(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue(HOST, file="own"), authority.issue(HOST, file="other")
    encrypted = authority.issue(HOST, password="words", file="closed")
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    for tls, said in (
        (TlsOptions(ca_path=nothing), "contains no certificates in PEM format"),
        (
            TlsOptions(certificate_path=pair.certificate, key_path=other.key),
            "are not a certificate and its private key",
        ),
        (TlsOptions(certificate_path=pair.certificate), "does not contain a certificate and its private key"),
        (
            TlsOptions(certificate_path=encrypted.certificate, key_path=encrypted.key),
            "its password is missing or wrong",
        ),
        (TlsOptions(certificate_path=tmp_path / "none"), "cannot be read"),
    ):
        with pytest.raises(TlsFilesError, match=said):
            tls.context()
    opened = TlsOptions(certificate_path=encrypted.certificate, key_path=encrypted.key, key_password="words")
    opened.context()
    assert "words" not in repr(opened)
    both = Pair(tmp_path / "both.pem", tmp_path / "unused.key")
    write_pair(both, pair.certificate.read_bytes() + pair.key.read_bytes(), b"")
    TlsOptions(certificate_path=both.certificate).context()


def test_text_without_certificates_is_reported() -> None:
    with pytest.raises(TlsFilesError, match="ca_pem contains no certificates in PEM format"):
        TlsOptions(ca_pem="garbage").context()
