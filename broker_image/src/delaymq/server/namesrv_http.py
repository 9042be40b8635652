"""Assembly of a NameServer's HTTP server. Importing this module loads aiohttp, so import it lazily."""

import asyncio
import importlib
import socket
from typing import TYPE_CHECKING

from aiohttp import web

from delaymq.server.http.guard import guard
from delaymq.server.http.http_server import MAX_BODY_BYTES, HttpServer, serve
from delaymq.server.http.responses import readiness

if TYPE_CHECKING:
    from delaymq.server.namesrv_server import NamesrvServer


async def alive(request: web.Request) -> web.Response:
    """/livez: any response proves that the event loop runs."""
    return web.json_response({"alive": True})


async def namesrv_http(server: "NamesrvServer", bound: socket.socket) -> HttpServer:
    """Start the HTTP server of a NameServer: probes and metrics."""

    async def ready(request: web.Request) -> web.Response:
        rules = server.namesrv.rules
        unread = rules is not None and not rules.readable
        return readiness(
            ["the rules are unreadable (namesrvAclConfigPath): see the log for the reason"] if unread else []
        )

    async def metrics(request: web.Request) -> web.Response:
        loop = asyncio.get_running_loop()
        module = await loop.run_in_executor(None, importlib.import_module, "delaymq.server.metrics.namesrv")
        text: bytes = module.NamesrvFamilies(server.namesrv, server.auditing.log).text()
        return web.Response(body=text, headers={"Content-Type": module.CONTENT_TYPE})

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_get("/livez", alive)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", metrics)
    config = server.config
    return await serve(app, bound, guard(config.http_host, config.http_token), tls=server.tls.for_http)
