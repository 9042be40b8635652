"""HTTP access: cross-origin requests, slow and silent clients, and security headers."""

import asyncio
import contextlib
import socket
from pathlib import Path

import aiohttp
import pytest
from delaymq.server.http import http_server
from delaymq_testing.running_server import HOST, run, standalone, until

JSON = {"Content-Type": "application/json"}


async def until_its_end(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection ends, by a reset or as it should."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while part := await reader.read(65_536):
            said += part
    return said


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("console.localhost:1", 200),
        ("[::1]:8080", 200),
        ("192.0.2.7", 200),
        ("broker.example", 200),
        ("BROKER.example:8080", 200),
        ("attacker.example", 403),
        ("127.0.0.1.attacker.example", 403),
        ("localhost.attacker.example", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_dns_rebinding_is_rejected(tmp_path: Path, host: str, status: int) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, http_names="broker.example") as server:
            reader, writer = await asyncio.open_connection(HOST, server.broker.http_port)
            writer.write(f"GET /api/v1/drain HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            answer = await until_its_end(reader)
            writer.close()
            assert int(answer.split()[1]) in (status, 400 if status == 403 else status)

    run(scenario)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (JSON, 200),
        (JSON | {"Origin": "http://127.0.0.1:{port}"}, 200),
        (JSON | {"Origin": "http://attacker.example"}, 403),
        (JSON | {"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_foreign_page_changes_nothing(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server, aiohttp.ClientSession() as session:
            port = server.broker.http_port
            sent = {name: value.format(port=port) for name, value in headers.items()}
            url, body = f"http://{HOST}:{port}/api/v1/drain", b'{"mode":"refuse","leaseMs":60000}'
            async with session.post(url, data=body, headers=sent) as answer:
                assert answer.status == status
            assert (server.broker.broker.drain.mode == "refuse") is (status == 200)

    run(scenario)


def test_token_is_sufficient(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, http_token="secret") as server, aiohttp.ClientSession() as session:
            url = f"http://{HOST}:{server.broker.http_port}/api/v1/drain"
            headers = {"Authorization": "Bearer secret", "Host": "anything.example", "Content-Type": "text/plain"}
            async with session.post(url, data=b'{"mode":"none"}', headers=headers) as answer:
                assert answer.status == 200
            async with session.get(url) as answer:
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")

    run(scenario)


def test_every_response_has_security_headers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server, aiohttp.ClientSession() as session:
            for path in ("/livez", "/api/v1/drain", "/api/v1/nothing", "/metrics", "/"):
                async with session.get(f"http://{HOST}:{server.broker.http_port}{path}") as answer:
                    assert answer.headers["X-Content-Type-Options"] == "nosniff"
                    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
                    assert answer.headers["Server"] == "delaymq"

    run(scenario)


def test_oldest_idle_connection_is_closed_for_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 3)

    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            held = []
            for count in range(1, 4):
                held.append(await asyncio.open_connection(HOST, server.broker.http_port))
                await until(lambda count=count: server.broker.http_connections == count)
            reader, writer = await asyncio.open_connection(HOST, server.broker.http_port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await until_its_end(reader)).startswith(b"HTTP/1.1 200")
            assert await until_its_end(held[0][0]) == b""
            for kept, client_requests in held[1:]:
                client_requests.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await kept.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            for _, other in (*held, (reader, writer)):
                other.close()

    run(scenario)


def test_excess_connections_are_closed_while_all_are_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 3)

    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            held = []
            head = b"POST /api/v1/drain HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            for count in range(1, 4):
                _, client_requests = connection = await asyncio.open_connection(HOST, server.broker.http_port)
                held.append(connection)
                # The handler waits for the body; its going on says that the request has come.
                client_requests.write(head + b"Expect: 100-continue\r\nContent-Length: 16\r\n\r\n")
                assert (await connection[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
                assert server.broker.http_connections == count
            reader, writer = await asyncio.open_connection(HOST, server.broker.http_port)
            assert await until_its_end(reader) == b""
            writer.close()
            for kept, client_requests in held:
                client_requests.write(b'{"mode": "none"}')
                assert (await kept.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
                client_requests.close()

    run(scenario)


def test_silent_or_trickling_client_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.3)

    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            silent, quiet = await asyncio.open_connection(HOST, server.broker.http_port)
            slow, trickling = await asyncio.open_connection(HOST, server.broker.http_port)
            trickling.write(b"GET /livez HT")
            assert await until_its_end(silent) == b""
            assert await until_its_end(slow) == b""
            quiet.close()
            trickling.close()

    run(scenario)


def test_missing_body_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "BODY_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            reader, writer = await asyncio.open_connection(HOST, server.broker.http_port)
            head = "POST /api/v1/drain HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: 50\r\n\r\n{{".encode())
            assert (await reader.readuntil(b"\r\n")).split()[1] == b"408"
            writer.close()

    run(scenario)


def test_final_response_reaches_a_slow_reader_completely(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                slow.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(slow, (HOST, server.broker.http_port))
                request = f"GET /api/v1/openapi.json HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"
                await loop.sock_sendall(slow, request.encode())
                # The server has handed all of it to the kernel, and is done with the connection.
                await until(lambda: server.broker.http_connections == 1)
                await until(lambda: server.broker.http_connections == 0)
                answer = b""
                while part := await loop.sock_recv(slow, 4_096):
                    answer += part
            head, _, body = answer.partition(b"\r\n\r\n")
            assert f"content-length: {len(body)}".encode() in head.lower()

    run(scenario)


def test_wrongly_compressed_body_is_a_bad_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server, aiohttp.ClientSession() as session:
            url = f"http://{HOST}:{server.broker.http_port}/api/v1/drain"
            headers = JSON | {"Content-Encoding": "gzip"}
            async with session.post(url, data=b"no gzip", headers=headers, compress=None) as answer:
                assert answer.status == 400
                assert (await answer.json())["error"]["code"] == "bad_request"

    run(scenario)
    assert "failed" not in caplog.text
