"""The synchronous HTTP client against a server that records its requests."""

import http.server
import threading
from collections.abc import Iterator

import pytest
from delaymq.http_client import AnswerCutError, AnswerTooLargeError, HttpClient, NotSentError, Pace
from delaymq.http_client.response import MAX_ERROR_BYTES


class Kept:
    """Paths, headers and connections of the requests so far, and what the next ones are answered."""

    def __init__(self) -> None:
        self.url = ""
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.connections: set[int] = set()
        self.answer = (200, b"{}")
        self.missing = 0
        """Number of bytes that the header states and that never come."""


@pytest.fixture
def kept() -> Iterator[Kept]:
    found = Kept()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.paths.append(self.path)
            found.headers.append(dict(self.headers))
            found.connections.add(self.client_address[1])
            status, data = found.answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(data) + found.missing))
            self.close_connection = found.missing > 0
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Requests are no output of a test."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def client_of(url: str, *, keeps_connection: bool = False, uses_proxy: bool = False, most: int = 1 << 20) -> HttpClient:
    return HttpClient(
        url, "token", timeout_s=10, max_answer_bytes=most, keeps_connection=keeps_connection, uses_proxy=uses_proxy
    )


@pytest.mark.parametrize(("keeps_connection", "connections"), [(True, 1), (False, 3)])
def test_connection_is_kept_on_request(kept: Kept, keeps_connection: bool, connections: int) -> None:
    client = client_of(kept.url, keeps_connection=keeps_connection)
    for _ in range(3):
        assert client.request("GET", "/x").data == b"{}"
    client.close()
    assert len(kept.connections) == connections
    assert {headers["Authorization"] for headers in kept.headers} == {"Bearer token"}


def test_rest_of_a_long_error_is_not_read_as_the_next_response(kept: Kept) -> None:
    client = client_of(kept.url, keeps_connection=True)
    kept.answer = (500, b"x" * (MAX_ERROR_BYTES + 10))
    reply = client.request("GET", "/x")
    assert (reply.status, len(reply.data), reply.problem.code) == (500, MAX_ERROR_BYTES, "")
    kept.answer = (200, b"{}")
    assert client.request("GET", "/x").data == b"{}"
    client.close()


def test_response_size_is_limited(kept: Kept) -> None:
    kept.answer = (200, b"x" * 100)
    assert len(client_of(kept.url, most=100).request("GET", "/x").data) == 100
    with pytest.raises(AnswerTooLargeError, match="exceeds 99 bytes"):
        client_of(kept.url, most=99).request("GET", "/x")


def test_problem_is_read_only_from_a_brokers_error_format(kept: Kept) -> None:
    for body, code in ((b'{"error":{"code":"busy","message":"m"}}', "busy"), (b"<html>", ""), (b"\xff", ""), (b"", "")):
        kept.answer = (503, body)
        assert client_of(kept.url).request("GET", "/x").problem.code == code


def test_request_uses_the_environments_proxy(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", kept.url.replace("//", "//me:p%40ss@"))
    client_of("http://broker.example:8080/a", uses_proxy=True).request("GET", "/x")
    assert kept.paths == ["http://broker.example:8080/a/x"]
    assert kept.headers[0]["Host"] == "broker.example:8080"
    assert kept.headers[0]["Proxy-Authorization"] == "Basic bWU6cEBzcw=="
    # None leads back to this machine.
    client_of(kept.url, uses_proxy=True).request("GET", "/x")
    assert kept.paths[1] == "/x"


def test_proxy_is_used_only_on_request(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", kept.url)
    with pytest.raises(NotSentError):
        client_of("http://127.0.0.2:1").request("GET", "/x")
    assert kept.paths == []


class Waits(Pace):
    """A pace that records its calls."""

    def __init__(self) -> None:
        super().__init__(10.0)
        self.addresses: list[int] = []
        self.bytes: list[int] = []
        self.is_over = False

    def connect_s(self, addresses: int) -> float:
        self.addresses.append(addresses)
        return super().connect_s(addresses)

    def wait_s(self) -> float:
        if self.is_over:
            raise TimeoutError
        return super().wait_s()

    def note_bytes(self, count: int) -> None:
        self.bytes.append(count)


def test_body_is_read_in_chunks_at_the_callers_pace(kept: Kept) -> None:
    kept.answer = (206, b"0123456789")
    waits = Waits()
    client = HttpClient(kept.url, timeout_s=waits, max_answer_bytes=0, keeps_connection=True)
    with client.send("GET", "/x", headers={"Range": "bytes=0-9"}) as response:
        assert (response.status, response.remaining) == (206, 10)
        pieces = [response.read(4), response.read(4), response.read(4), response.read(4)]
    assert pieces == [b"0123", b"4567", b"89", b""]
    assert kept.headers[0]["Range"] == "bytes=0-9"
    assert (waits.addresses, sum(waits.bytes)) == ([1], 10)
    assert client.is_connected
    with client.send("GET", "/x") as response:
        waits.is_over = True
        with pytest.raises(TimeoutError):
            response.read(4)
    assert not client.is_connected
    with pytest.raises(NotSentError) as caught:
        client.send("GET", "/x")
    assert isinstance(caught.value.reason, TimeoutError)


def test_rest_of_a_body_is_not_read_as_the_next_response(kept: Kept) -> None:
    client = client_of(kept.url, keeps_connection=True)
    kept.answer = (200, b"0123456789")
    with client.send("GET", "/x") as response:
        assert response.read(4) == b"0123"
    assert client.request("GET", "/x").data == b"0123456789"
    client.close()
    assert len(kept.connections) == 2


def test_truncated_body_is_an_error(kept: Kept) -> None:
    kept.answer, kept.missing = (200, b"{}"), 8
    with pytest.raises(AnswerCutError, match="ended 8 bytes early"):
        client_of(kept.url).request("GET", "/x")
    kept.answer = (503, b"{}")
    assert client_of(kept.url).request("GET", "/x").data == b""
