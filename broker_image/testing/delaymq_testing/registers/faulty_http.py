"""An HTTP server that applies requests to a backend, and injects faults before or after."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import NamedTuple, Protocol

RESET = struct.pack("ii", 1, 0)
HUGE_BYTES = 3 << 20
RESPONSE = "HTTP/1.1 {} Any\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}\r\n"


class Applies(Enum):
    """Whether a faulty request takes effect."""

    NEVER = 0
    FIRST = 1
    """Before the fault."""
    LATER = 2
    """When the client has given up."""


class Fault(Enum):
    """A fault, with its effect."""

    NONE = ("none", Applies.FIRST)
    RESET_BEFORE = ("reset", Applies.NEVER)
    RESET_AFTER = ("reset", Applies.FIRST)
    CLOSE_BEFORE = ("close", Applies.NEVER)
    CLOSE_AFTER = ("close", Applies.FIRST)
    SILENT_BEFORE = ("silent", Applies.NEVER)
    SILENT_AFTER = ("silent", Applies.FIRST)
    LATE = ("silent", Applies.LATER)
    CUT_BODY = ("cut", Applies.FIRST)
    HALF_JSON = ("half", Applies.FIRST)
    HUGE = ("huge", Applies.FIRST)
    EMPTY_OBJECT = ("empty", Applies.FIRST)
    EMPTY_OBJECT_BEFORE = ("empty", Applies.NEVER)
    HTML = ("html", Applies.FIRST)
    GARBAGE = ("garbage", Applies.FIRST)
    DEEP_JSON = ("deep", Applies.FIRST)
    REDIRECT = ("redirect", Applies.NEVER)
    CONFLICT_OF_PROXY_BEFORE = ("409", Applies.NEVER)
    CONFLICT_OF_PROXY_AFTER = ("409", Applies.FIRST)
    GONE = ("410", Applies.NEVER)
    TOO_MANY = ("429", Applies.NEVER)
    ERROR_BEFORE = ("500", Applies.NEVER)
    ERROR_AFTER = ("500", Applies.FIRST)
    UNAVAILABLE_AFTER = ("503", Applies.FIRST)
    GATEWAY_TIMEOUT_AFTER = ("504", Applies.FIRST)

    def __init__(self, kind: str, applies: Applies) -> None:
        self.kind = kind
        self.applies = applies

    def __new__(cls, kind: str, applies: Applies) -> Fault:
        # Members with equal values would be aliases.
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        return member


SILENT = {fault for fault in Fault if fault.kind == "silent"}
"""Only the deadline of the client ends these requests."""


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Answer(NamedTuple):
    status: int
    body: object


class Backend(Protocol):
    def respond(self, request: Request) -> Answer: ...

    def is_write(self, request: Request) -> bool: ...


class FaultyServer:
    """One address of a backend."""

    def __init__(self, backend: Backend, late_s: float) -> None:
        self.backend = backend
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        """Faults of the next requests, the first one first; others have none."""
        self.choose: Callable[[Request], Fault] = self._next_fault
        self.url = ""
        self._late_s = late_s
        self._late: list[Request] = []
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def writes(self) -> int:
        """Number of received writes."""
        return sum(map(self.backend.is_write, self.requests))

    def apply_late(self, request: Request | None = None) -> None:
        """Apply a request that was to be applied later, or all of them."""
        late = [each for each in self._late if request is None or each is request]
        self._late = [each for each in self._late if each not in late]
        for each in late:
            self.backend.respond(each)

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[FaultyServer]:
        """Listen on a free port of loopback."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for writer in list(self._writers):
                writer.close()

    def _next_fault(self, request: Request) -> Fault:
        return self.faults.pop(0) if self.faults else Fault.NONE

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._handle(await _request(reader), reader, writer):
                pass
        except (OSError, EOFError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _handle(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Return whether the connection continues."""
        self.requests.append(request)
        fault = self.choose(request)
        answer = Answer((fault.kind.isdigit() and int(fault.kind)) or 200, {})
        if fault.applies is Applies.FIRST:
            applied = self.backend.respond(request)
            answer = applied if fault.kind in ("none", "cut", "half") else answer
        elif fault.applies is Applies.LATER:
            self._late.append(request)
            asyncio.get_running_loop().call_later(self._late_s, self.apply_late, request)
        match fault.kind:
            case "reset":
                handle: socket.socket = writer.get_extra_info("socket")
                handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()
                return False
            case "close":
                return False
            case "silent":
                await reader.read()
                return False
        writer.write(_response(fault, answer))
        await writer.drain()
        return fault.kind not in ("cut", "garbage", "huge")


def _response(fault: Fault, answer: Answer) -> bytes:
    body = json.dumps(answer.body).encode()
    length, content_type, more = len(body), "application/json", ""
    match fault.kind:
        case "cut":
            body = body[: len(body) // 2]
        case "half":
            body = body[: len(body) // 2]
            length = len(body)
        case "huge":
            body = b'"' + b"x" * HUGE_BYTES + b'"'
            length = len(body)
        case "html":
            body = b"<html>proxy</html>"
            length, content_type = len(body), "text/html"
        case "deep":
            body = b"[" * 100_000
            length = len(body)
        case "garbage":
            return b"\x16\x03\x01 no HTTP\r\n\r\n"
        case "redirect":
            return RESPONSE.format(307, content_type, 0, "Location: /elsewhere\r\n").encode()
        case "429":
            more = "Retry-After: 1\r\n"
        case "409":
            body = b"conflict"
            length, content_type = len(body), "text/plain"
    return RESPONSE.format(answer.status, content_type, length, more).encode() + body


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body)
