"""A broker's HTTP API that can be made to misbehave."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
from delaymq.api_types.store import FileSizes, Segment, Starts, Store
from delaymq.store.reader import LogEnd, StoreReader

_FILE_SIZES = FileSizes(
    commit_log_file_bytes=1 << 20, consume_queue_file_bytes=4_000, index_slots=1, index_entries=1, index_enabled=False
)
Answer = Callable[["Handler"], None]


class FakeBroker(ThreadingHTTPServer):
    """Serves the store at `path`; `script` contains the responses to the next requests for segments."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reader = StoreReader(path)
        self.script: list[Answer] = []
        self.first: Answer | None = None
        """Response to every request, if set."""
        self.minimum_reader = 2
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.end = next(item.offset for item in self.reader.walk() if isinstance(item, LogEnd))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def about(self) -> dict[str, Any]:
        segments = [each for each in self.reader.segments() if each.base < self.end]
        store = Store(
            format_version=1, as_of_ms=0, store_id="one", broker_name="b", in_use=True, message_delay_level="1s",
            file_reserved_time_hours=72, files=_FILE_SIZES, start_offset=segments[0].base, end_offset=self.end,
            segments=[
                Segment(name=f"{each.base:020d}", offset=each.base, bytes=min(each.end, self.end) - each.base)
                for each in segments
            ],
            minimum_reader=self.minimum_reader,
        )  # fmt: skip
        told: dict[str, Any] = msgspec.to_builtins(store)
        return told

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections, which are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: FakeBroker

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        if self.server.first is not None:
            self.server.first(self)
        elif self.path == "/api/v1/store":
            send_json(self, self.server.about())
        elif self.path.endswith(f"/starts?every={self.path.rpartition('=')[2]}"):
            send_json(self, msgspec.to_builtins(Starts(as_of_ms=0, every=1, starts=[])))
        elif self.server.script:
            self.server.script.pop(0)(self)
        else:
            send_range(self)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def send(handler: Handler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content_Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def send_json(handler: Handler, content: Any, status: int = 200) -> None:
    send(handler, status, json.dumps(content).encode(), Content_Type="application/json")


def send_range(handler: Handler, missing: int = 0, store_id: str = "one", shift: int = 0) -> None:
    """Send the requested range without its last `missing` bytes."""
    name = handler.path.rpartition("/")[2]
    start, _, last = handler.headers["Range"].removeprefix("bytes=").partition("-")
    descriptor = os.open(f"{handler.server.reader.path}/commitlog/{name}", os.O_RDONLY)
    try:
        data = os.pread(descriptor, int(last) + 1 - int(start), int(start))
    finally:
        os.close(descriptor)
    range_ = f"bytes {int(start) + shift}-{last}/*"
    headers = {"Content_Length": str(len(data)), "Content_Range": range_, "DelayMQ_Store_Id": store_id}
    send(handler, 206, data[: len(data) - missing], **headers)
    if missing:
        handler.close_connection = True


def fail(status: int, code: str = "", message: str = "", **headers: str) -> Answer:
    """Return a response with a broker's error, or without a body."""
    body = json.dumps({"error": {"code": code, "message": message}}).encode() if code else b""
    return lambda handler: send(handler, status, body, **headers)


def reset(handler: Handler) -> None:
    """Close the connection without a response."""
    handler.close_connection = True
    handler.connection.close()


@contextmanager
def fake_broker(path: Path) -> Iterator[FakeBroker]:
    server = FakeBroker(path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
