"""HTTP for people, probes and Prometheus. Importing this module loads aiohttp: do it late."""

import hmac
import logging
import socket
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from delaymq.server.console import is_console_path
from delaymq.server.listening import is_loopback, port_of

if TYPE_CHECKING:
    from delaymq.server.namesrv_server import NamesrvServer

MAX_BODY_BYTES: Final = 64 * 1024
"""No request here has a body worth mentioning."""
SHUTDOWN_TIMEOUT_S: Final = 1.0
OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/metrics"})
"""What probes and Prometheus read without a token."""

_logger = logging.getLogger(__name__)


class HttpServer:
    """A listening HTTP server."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self._runner = runner
        self.port = port

    async def stop(self) -> None:
        """Closes it."""
        await self._runner.cleanup()


async def serve(app: web.Application, bound: socket.socket, host: str, token: str) -> HttpServer:
    """Listens with `app` on a bound socket; `host` is what it was bound to."""
    app.middlewares.append(_errors_as_json)
    app.middlewares.append(_guard(host, token))
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    await web.SockSite(runner, bound).start()
    return HttpServer(runner, port_of(bound))


def error_response(status: int, code: str, message: str) -> web.Response:
    """The one form of errors."""
    return web.json_response({"error": {"code": code, "message": message}}, status=status)


def readiness(problems: list[str]) -> web.Response:
    """The answer of /readyz."""
    if problems:
        body = {"ready": False, "notReady": problems, "error": {"code": "not_ready", "message": "; ".join(problems)}}
        return web.json_response(body, status=503)
    return web.json_response({"ready": True, "notReady": []})


async def alive(request: web.Request) -> web.Response:
    """/livez: the loop runs, or there would be no answer."""
    return web.json_response({"alive": True})


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        code = (error.reason or "error").lower().replace(" ", "_")
        response = error_response(error.status, code, f"{request.method} {request.path}: {error.reason}")
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except Exception as error:
        _logger.exception("%s %s failed", request.method, request.path)
        return error_response(500, "internal_error", f"{type(error).__name__}: {error}")


def _guard(host: str, token: str) -> Middleware:
    is_open = is_loopback(host) and not token

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_open or request.path in OPEN_PATHS or is_console_path(request.path):
            return await handler(request)
        if not token:
            message = "set httpToken, or listen on loopback only (httpHost=127.0.0.1)"
            return error_response(403, "token_not_configured", message)
        stated = request.headers.get("Authorization", "")
        if not hmac.compare_digest(stated.encode(errors="replace"), f"Bearer {token}".encode()):
            return error_response(401, "unauthorized", "send the header Authorization: Bearer TOKEN (httpToken)")
        return await handler(request)

    return guard


async def namesrv_http(server: "NamesrvServer", bound: socket.socket) -> HttpServer:
    """The HTTP side of a NameServer: probes only."""

    async def ready(request: web.Request) -> web.Response:
        return readiness([])

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_get("/livez", alive)
    app.router.add_get("/readyz", ready)
    config = server.config
    return await serve(app, bound, config.http_host, config.http_token)
