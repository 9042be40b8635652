"""HTTP server for the API, probes and Prometheus. Importing this module loads aiohttp, so import it lazily."""

import asyncio
import logging
import resource
import socket
from collections.abc import Collection
from typing import Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from delaymq.server.http.responses import add_headers, error_response, errors_as_json
from delaymq.server.http.secure_port import SecurePort
from delaymq.server.listening import BACKLOG, port_of
from delaymq.transport.tcp_socket import LINGER_OFF, reset_at_close
from delaymq.transport.tls_acceptor import TlsAcceptor

MAX_BODY_BYTES: Final = 64 * 1024
"""Valid request bodies are much smaller, except on paths with a limit of their own."""
SHUTDOWN_TIMEOUT_S: Final = 1.0
MAX_CONNECTIONS: Final = 256
"""Maximum concurrent connections; each takes a descriptor and some memory.

A further connection replaces the oldest idle one, because clients that hold connections open must not lock out probes,
which would cause a restart of the broker. If all connections have a request in progress, further ones are reset.
"""
IDLE_S: Final = 30.0
"""A connection is closed if its first or next request does not arrive completely within this time."""
BODY_TIMEOUT_S: Final = 10.0
"""Maximum time for receiving a request body."""
STALLED_S: Final = 30.0
"""A connection whose peer receives nothing of a response for this time is reset."""
_STALL_CHECK_S: Final = 5.0
NOT_ENCODED: Final = "the body does not match its Content-Encoding: send it unencoded"
"""Message of the error response to a body that cannot be decoded."""

__all__ = ["MAX_BODY_BYTES", "HttpServer", "abort", "error_response", "serve"]


def most_connections() -> int:
    """Return the maximum number of connections: at most a quarter of the descriptors, as the store needs the rest."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if limit == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, limit // 4)


class HttpServer:
    """A listening HTTP server."""

    def __init__(self, runner: web.AppRunner, stalls: "_Stalls", port: int, secure: SecurePort | None) -> None:
        self._runner = runner
        self._stalls = stalls
        self._secure = secure
        self.port = port

    @property
    def connections(self) -> int:
        """Number of open connections."""
        server = self._runner.server
        return len(server.connections) if server is not None else 0

    async def stop(self) -> None:
        """Close the server and its connections."""
        self._stalls.stop()
        if self._secure is not None:
            self._secure.close()
        await self._runner.cleanup()


async def serve(
    app: web.Application,
    bound: socket.socket,
    guarded: Middleware,
    *,
    own_bodies: Collection[str] = (),
    audited: Middleware | None = None,
    tls: TlsAcceptor | None = None,
) -> HttpServer:
    """Serve `app` on a bound socket, behind the guard `guarded`.

    Handlers of the paths in `own_bodies` receive the request bodies, and limit their size and time. `audited` records
    requests, including those that the guard refuses. With `tls`, which the server then closes, it serves only HTTPS.
    """
    busy: set[asyncio.BaseTransport] = set()
    app.middlewares.append(_marks_busy(busy))
    if audited is not None:
        app.middlewares.append(audited)
    app.middlewares.append(errors_as_json)
    app.middlewares.append(guarded)
    app.middlewares.append(_complete_bodies(frozenset(own_bodies)))
    app.on_response_prepare.append(add_headers)
    # aiohttp would log malformed requests with a traceback; our own failures are logged in responses.py.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    # A reset when a connection is closed would discard the part of the last response that is still in transit.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_OFF)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        keepalive_timeout=IDLE_S,
    )
    await runner.setup()
    site = _Site(runner, bound, backlog=BACKLOG)
    site.busy = busy
    if tls is not None:
        site.secure = SecurePort(tls, site.accept, max(1, most_connections() // 2))
    await site.start()
    stalls = _Stalls(runner)
    return HttpServer(runner, stalls, port_of(bound), site.secure)


def _marks_busy(busy: set[asyncio.BaseTransport]) -> Middleware:
    """Return a middleware that keeps the connections with a request in progress in `busy`."""

    @web.middleware
    async def marked(request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            return await handler(request)
        busy.add(transport)
        try:
            return await handler(request)
        finally:
            busy.discard(transport)

    return marked


def _complete_bodies(own_bodies: frozenset[str]) -> Middleware:
    """Return a middleware that receives the body before the handler runs, except on the paths in `own_bodies`."""

    @web.middleware
    async def completed(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        if request.can_read_body and (resource is None or resource.canonical not in own_bodies):
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    await request.read()
            except web.RequestPayloadError:
                return error_response(400, "bad_request", NOT_ENCODED)
            except TimeoutError:
                return error_response(408, "request_timeout", late_body())
        return await handler(request)

    return completed


def late_body() -> str:
    """Return the message of the error response to a request whose body is late."""
    return f"the body did not arrive within {BODY_TIMEOUT_S:g} s"


class _Site(web.SockSite):
    """Listening socket with a limited number of connections."""

    busy: set[asyncio.BaseTransport]
    """Connections with a request in progress."""
    secure: SecurePort | None = None
    """Handshakes of new connections; None without TLS."""

    async def start(self) -> None:
        await web.BaseSite.start(self)
        self._server = await asyncio.get_running_loop().create_server(
            self.secure or self.accept, sock=self._sock, backlog=self._backlog
        )

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a new connection, which resets it if there is no capacity."""
        server = self._runner.server
        if server is None or (len(server.connections) >= most_connections() and not self._make_room(server)):
            return _Aborted()
        return server()

    def _make_room(self, server: web.Server) -> bool:
        """Close the oldest idle connection if necessary; return whether there is capacity for another."""
        there = [each.transport for each in server.connections]
        live = [transport for transport in there if transport is not None and not transport.is_closing()]
        if len(live) < most_connections():
            return True
        idle = next((each for each in live if each not in self.busy and not each.get_write_buffer_size()), None)
        if idle is not None:
            idle.close()
        return idle is not None


class _Aborted(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        abort(cast("asyncio.Transport", transport))  # uvloop's transports are not asyncio classes


def abort(transport: asyncio.Transport) -> None:
    """Reset a connection immediately, so that no unsent data stays in the kernel."""
    reset_at_close(transport, True)
    transport.abort()


class _Stalls:
    """Resets connections whose peer does not receive the unsent data."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Transport, tuple[int, float]] = {}
        self._timer = self._loop.call_later(_STALL_CHECK_S, self._check)

    def stop(self) -> None:
        """Stop the checks."""
        self._timer.cancel()

    def _check(self) -> None:
        now = self._loop.time()
        waiting: dict[asyncio.Transport, tuple[int, float]] = {}
        for connection in self._runner.server.connections if self._runner.server is not None else []:
            transport = connection.transport
            unsent = transport.get_write_buffer_size() if transport is not None else 0
            if transport is None or not unsent:
                continue
            known = self._waiting.get(transport)
            waiting[transport] = known if known is not None and known[0] == unsent else (unsent, now)
            if now - waiting[transport][1] >= STALLED_S:
                abort(transport)
        self._waiting = waiting
        self._timer = self._loop.call_later(_STALL_CHECK_S, self._check)
