"""HTTPS: the HTTP port with a certificate, its renewal, and clients that do not complete handshakes."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from delaymq.config import BrokerConfig, ConfigError, NamesrvConfig
from delaymq.server.http import http_server, secure_port
from delaymq.server.http.secure_port import NEEDS_HTTPS
from delaymq.server.standalone import Standalone
from delaymq_testing.certificates import Authority, Pair, client_context, write_pair
from delaymq_testing.running_server import HOST, run, standalone, until
from harness.ports import free_port

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def pair(authority: Authority, tmp_path: Path) -> Pair:
    """Files of its own for each test."""
    issued = authority.issue(HOST)
    own = Pair(tmp_path / "tls.crt", tmp_path / "tls.key")
    write_pair(own, issued.certificate.read_bytes(), issued.key.read_bytes())
    return own


@asynccontextmanager
async def served(tmp_path: Path, pair: Pair, **more: Any) -> AsyncIterator[Standalone]:
    keys = {"http_tls": True, "tls_server_cert_path": str(pair.certificate), "tls_server_key_path": str(pair.key)}
    async with standalone(tmp_path / "store", http=True, **keys, **more) as server:
        yield server


async def get(port: int | None, context: ssl.SSLContext | None, request: bytes = LIVEZ) -> bytes:
    """Return the whole response."""
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


async def serial_number(port: int | None, context: ssl.SSLContext) -> object:
    _, writer = await asyncio.open_connection(HOST, port, ssl=context)
    shown = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return shown


def test_brokers_and_nameservers_serve_probes_and_the_api_over_https(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    async def scenario() -> None:
        keys = {"tls_server_cert_path": str(pair.certificate), "tls_server_key_path": str(pair.key)}
        of_namesrv = {f"namesrv_{key}": value for key, value in keys.items()}
        # A free port: 0 would disable the NameServer's HTTP server.
        with_http = {"namesrv_http_port": free_port(), "namesrv_http_tls": True, **of_namesrv}
        async with served(tmp_path, pair, tls_server_mode="disabled", **with_http) as server:
            trusting = client_context(authority)
            for port in (server.broker.http_port, server.namesrv.http_port):
                assert (await get(port, trusting)).startswith(b"HTTP/1.1 200")
            # Larger than the buffers of TLS, so that it is written in pieces.
            document = await get(server.broker.http_port, trusting, LIVEZ.replace(b"/livez", b"/api/v1/openapi.json"))
            assert document.startswith(b"HTTP/1.1 200")
            assert document.endswith(b"}")
            with pytest.raises(ssl.SSLError):
                await get(server.broker.http_port, ssl.create_default_context())

    run(scenario)


def test_keep_alive_requests_and_bodies_work_over_https(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        async with served(tmp_path, pair, http_token="secret-of-http") as server:
            port = server.broker.http_port
            reader, writer = await asyncio.open_connection(HOST, port, ssl=client_context(authority))
            body = b'{"mode": "none"}'
            head = (
                b"POST /api/v1/drain HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-of-http\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            )
            for _ in range(3):
                writer.write(head + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 200")
                length = int(answer.lower().partition(b"content-length: ")[2].split()[0])
                await reader.readexactly(length)
            assert server.broker.http_connections == 1
            writer.close()
            await until(lambda: server.broker.http_connections == 0)
            assert server.broker.tls.handshakes()["done"] == 1

    run(scenario)


@pytest.mark.parametrize("mode", ["require", "optional"])
def test_https_requests_no_client_certificate(tmp_path: Path, authority: Authority, pair: Pair, mode: str) -> None:
    async def scenario() -> None:
        more = {"tls_server_auth_client": True, "tls_server_trust_cert_path": str(authority.certificate)}
        async with served(tmp_path, pair, tls_server_need_client_auth=mode, **more) as server:
            assert (await get(server.broker.http_port, client_context(authority))).startswith(b"HTTP/1.1 200")

    run(scenario)


def test_plaintext_request_is_told_to_use_https(tmp_path: Path, pair: Pair) -> None:
    async def scenario() -> None:
        async with served(tmp_path, pair) as server:
            answer = await get(server.broker.http_port, None)
            assert answer.startswith(b"HTTP/1.1 400")
            assert NEEDS_HTTPS.encode() in answer
            assert await get(server.broker.http_port, None, b"\0\0\0\x10binary") == b""
            assert server.broker.tls.handshakes()["plain_refused"] == 2

    run(scenario)


def test_missing_certificate_prevents_the_start_with_a_reason() -> None:
    for kind in (BrokerConfig, NamesrvConfig):
        with pytest.raises(ConfigError, match=r"httpTls=true requires a certificate: set tls\.server\.certPath"):
            kind(http_tls=True)


def test_renewed_certificate_is_used_under_load(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        async with served(tmp_path, pair) as server:
            port, trusting = server.broker.http_port, client_context(authority)
            first = await serial_number(port, trusting)
            failures: list[bytes] = []
            finished = asyncio.Event()

            async def request() -> None:
                while not finished.is_set():
                    answer = await get(port, trusting)
                    if not answer.startswith(b"HTTP/1.1 200"):
                        failures.append(answer)

            tasks = [asyncio.create_task(request()) for _ in range(4)]
            renewed = authority.issue(HOST, file="renewed")
            write_pair(pair, renewed.certificate.read_bytes(), renewed.key.read_bytes())
            await until(lambda: server.broker.tls.reloads == 1)
            assert await serial_number(port, trusting) != first
            finished.set()
            await asyncio.gather(*tasks)
            assert failures == []

    run(scenario)


def test_clients_that_never_complete_a_handshake_do_not_lock_out_probes(
    tmp_path: Path, authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 16)

    async def scenario() -> None:
        async with served(tmp_path, pair) as server:
            port, trusting = server.broker.http_port, client_context(authority)
            held = []
            for number in range(64):
                held.append(await asyncio.open_connection(HOST, port))
                # Half of them send nothing, the others the start of a handshake.
                if number % 2:
                    held[-1][1].write(b"\x16\x03\x01\x02\x00\x01")
            for _ in range(3):
                assert (await get(port, trusting)).startswith(b"HTTP/1.1 200")
            assert server.broker.http_connections <= 1
            for _, writer in held:
                writer.close()

    run(scenario)


def test_silent_client_is_disconnected(tmp_path: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_port, "HANDSHAKE_TIMEOUT_S", 0.1)

    async def scenario() -> None:
        async with served(tmp_path, pair) as server:
            reader, writer = await asyncio.open_connection(HOST, server.broker.http_port)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(scenario)


def test_stop_ends_open_handshakes_and_connections(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        async with served(tmp_path, pair) as server:
            port = server.broker.http_port
            half = await asyncio.open_connection(HOST, port)
            half[1].write(b"\x16\x03\x01")
            idle = await asyncio.open_connection(HOST, port, ssl=client_context(authority))
            await until(lambda: server.broker.http_connections == 1)
        for reader, writer in (half, idle):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(scenario)


@pytest.mark.filterwarnings("ignore:.*TLSv1:DeprecationWarning")
def test_older_tls_versions_are_rejected(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        async with served(tmp_path, pair) as server:
            old = client_context(authority)
            old.minimum_version = ssl.TLSVersion.TLSv1
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            old.set_ciphers("ALL:@SECLEVEL=0")
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await get(server.broker.http_port, old)
            assert server.broker.tls.handshakes()["failed"] == 1

    run(scenario)
