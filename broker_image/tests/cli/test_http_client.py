"""The synchronous HTTP client against a server that keeps what it was asked."""

import http.server
import threading
from collections.abc import Iterator

import pytest
from delaymq.http_client import AnswerTooLargeError, HttpClient, NotSentError
from delaymq.http_client.client import MAX_ERROR_BYTES


class Kept:
    """Paths, headers and connections of the requests so far, and what the next ones are answered."""

    def __init__(self) -> None:
        self.url = ""
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.connections: set[int] = set()
        self.answer = (200, b"{}")


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
            self.send_header("Content-Length", str(len(data)))
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
def test_a_connection_is_kept_if_the_caller_wants_so(kept: Kept, keeps_connection: bool, connections: int) -> None:
    client = client_of(kept.url, keeps_connection=keeps_connection)
    for _ in range(3):
        assert client.request("GET", "/x").data == b"{}"
    client.close()
    assert len(kept.connections) == connections
    assert {headers["Authorization"] for headers in kept.headers} == {"Bearer token"}


def test_the_rest_of_a_long_error_is_not_taken_for_the_next_answer(kept: Kept) -> None:
    client = client_of(kept.url, keeps_connection=True)
    kept.answer = (500, b"x" * (MAX_ERROR_BYTES + 10))
    reply = client.request("GET", "/x")
    assert (reply.status, len(reply.data), reply.problem.code) == (500, MAX_ERROR_BYTES, "")
    kept.answer = (200, b"{}")
    assert client.request("GET", "/x").data == b"{}"
    client.close()


def test_an_answer_may_be_as_large_as_the_limit_and_no_larger(kept: Kept) -> None:
    kept.answer = (200, b"x" * 100)
    assert len(client_of(kept.url, most=100).request("GET", "/x").data) == 100
    with pytest.raises(AnswerTooLargeError, match="more than 99 bytes"):
        client_of(kept.url, most=99).request("GET", "/x")


def test_a_problem_is_read_only_from_the_form_of_a_broker_s_error(kept: Kept) -> None:
    for body, code in ((b'{"error":{"code":"busy","message":"m"}}', "busy"), (b"<html>", ""), (b"\xff", ""), (b"", "")):
        kept.answer = (503, body)
        assert client_of(kept.url).request("GET", "/x").problem.code == code


def test_a_request_goes_through_the_proxy_that_the_environment_names(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_who_does_not_ask_for_a_proxy_gets_none(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", kept.url)
    with pytest.raises(NotSentError):
        client_of("http://127.0.0.2:1").request("GET", "/x")
    assert kept.paths == []
