"""Assembly of a broker's HTTP server. Importing this module loads aiohttp, so import it lazily."""

import socket
from typing import TYPE_CHECKING

from aiohttp import web

from delaymq.server.api.routes import ROUTES
from delaymq.server.api.routing import Api, add_routes
from delaymq.server.audit.http import auditing
from delaymq.server.console import add_console
from delaymq.server.http.guard import guard
from delaymq.server.http.http_server import MAX_BODY_BYTES, HttpServer, serve
from delaymq.server.http.sign_in.accounts import HttpAccounts
from delaymq.server.listening import LOOPBACK

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer


async def broker_http(server: "BrokerServer", bound: socket.socket) -> HttpServer:
    """Start a broker's HTTP server on a bound socket."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    config, access = server.config, server.broker.access
    if access is not None:
        server.http_accounts = HttpAccounts(lambda: access.rules.accounts, config)
    add_console(app)
    add_routes(app, Api(server), ROUTES)
    own_bodies = [route.path for route in ROUTES if route.receives_body]
    inner = server.inner_http_token
    # Without a token of its own, a supervisor accepts requests of anybody on this machine.
    audited = auditing(server.auditing.log, has_token=bool(config.http_token))
    accounts, metrics = server.http_accounts, config.http_metrics_token
    if inner:
        # The supervisor has checked the token of metrics, and sends its own one.
        guarded = guard(LOOPBACK, inner, accounts=accounts, metrics_token=inner if metrics else "", is_inner=True)
        return await serve(app, bound, guarded, own_bodies=own_bodies, audited=audited)
    host, names = config.http_host, config.own_http_names
    guarded = guard(host, config.http_token, names, accounts=accounts, metrics_token=metrics)
    return await serve(app, bound, guarded, own_bodies=own_bodies, audited=audited, tls=server.tls.for_http)
