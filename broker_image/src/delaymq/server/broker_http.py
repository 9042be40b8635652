"""The broker's HTTP side: probes, metrics, /api/v1. Importing this module loads aiohttp: do it late."""

import asyncio
import importlib
import socket
from typing import TYPE_CHECKING

from aiohttp import web

from delaymq.server.http import MAX_BODY_BYTES, HttpServer, alive, readiness, serve

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer


class BrokerHttp:
    """Handlers over one broker."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server

    async def ready(self, request: web.Request) -> web.Response:
        """/readyz."""
        return readiness(self._server.not_ready())

    async def metrics(self, request: web.Request) -> web.Response:
        """/metrics, in Prometheus' text format."""
        loop = asyncio.get_running_loop()
        # Loaded by the first scrape, in a thread: it takes longer than the loop should stand still.
        module = await loop.run_in_executor(None, importlib.import_module, "delaymq.server.metrics")
        snapshot = module.Snapshot(self._server)
        text = await loop.run_in_executor(None, snapshot.text)
        return web.Response(body=text, headers={"Content-Type": module.CONTENT_TYPE})

    async def delay(self, request: web.Request) -> web.Response:
        """/api/v1/delay."""
        return web.json_response(self._server.broker.delivery.status())

    async def decommission(self, request: web.Request) -> web.Response:
        """POST /api/v1/decommission: no more writes; the next stop unregisters the broker. May be repeated."""
        self._server.decommission()
        pending = sum(self._server.broker.delivery.pending().values())
        return web.json_response({"decommissioned": True, "pendingDelays": pending}, status=202)


async def broker_http(server: "BrokerServer", bound: socket.socket) -> HttpServer:
    """Listens on the bound HTTP port of a broker."""
    handlers = BrokerHttp(server)
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_get("/livez", alive)
    app.router.add_get("/readyz", handlers.ready)
    app.router.add_get("/metrics", handlers.metrics)
    app.router.add_get("/api/v1/delay", handlers.delay)
    app.router.add_post("/api/v1/decommission", handlers.decommission)
    config = server.config
    return await serve(app, bound, config.http_host, config.http_token)
