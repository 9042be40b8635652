"""Audit of HTTP requests: a middleware around all others, so that refused requests are recorded, too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from delaymq.audit.log import Attempt
from delaymq.server.audit.routes import CHANGES, Key, change_at, names_in_body
from delaymq.server.http.guard import SESSION_PATH
from delaymq.server.http.responses import READING_METHODS
from delaymq.server.http.sign_in.accounts import CALLER, STATED
from delaymq.server.http.sign_in.peers import network_of_host, peer_of
from delaymq.transport.addresses import host_and_port

if TYPE_CHECKING:
    from delaymq.api_types.audit import AuditResult
    from delaymq.audit.log import AuditLog

FORWARDED: Final = web.RequestKey("delaymq.forwarded", bool)
"""Key of a request that was forwarded to a group, whose broker records it."""
SUMMARY_BYTES: Final = 8 * 1024
"""Longest error response whose message is recorded."""
_UNPROVEN: Final = (401, 403)
_UNCONFIRMED: Final = frozenset({"not_flushed", "not_replicated"})
"""Codes of error responses to changes that are in effect."""


def auditing(log: AuditLog, *, has_token: bool, prefix: str = "") -> Middleware:
    """Return a middleware that records changes and refused attempts.

    `has_token`: requests that were not refused had a token, or are those of an account. `prefix`: this is the
    supervisor, which records sign-ins and what it refuses itself; paths of groups start with it.
    """

    @web.middleware
    async def recorded(request: web.Request, handler: Handler) -> web.StreamResponse:
        found = _change_in(request, prefix) if log.is_on and request.method not in READING_METHODS else None
        if found is None:
            return await handler(request)
        key, named = found
        status, code, message = 0, "", ""
        try:
            response = await handler(request)
            status, (code, message) = response.status, _problem(response)
        finally:
            # Without a response, such as after a disconnection, the change may be in effect.
            if FORWARDED not in request:
                record(request, key, named, status, code, message)
        return response

    def record(request: web.Request, key: Key, named: dict[str, str], status: int, code: str, message: str) -> None:
        body = getattr(request, "_read_bytes", None) or b""  # not there if it was refused before it was read
        action, more = names_in_body(CHANGES[key], body)
        peer, caller = peer_of(request), request.get(CALLER)
        account = request.get(STATED, "") if caller is None else caller.name
        attempt = Attempt(
            via="http",
            action=action,
            peer=host_and_port(*peer),
            network=network_of_host(peer[0]),
            route=" ".join(key),
            target={**named, **more},
            account=account,
            verified=caller is not None and (bool(caller.name) or (has_token and status not in _UNPROVEN)),
            secrets=_secrets(request),
        )
        log.record(attempt, _result(status, code), status, message)

    return recorded


def _change_in(request: web.Request, prefix: str) -> tuple[Key, dict[str, str]] | None:
    """Return the changing route of a request, and the names in its path. None: it is not one."""
    if prefix:
        if request.path == SESSION_PATH:
            return change_at(request.method, request.path)
        if not request.path.startswith(prefix):
            return None
        broker, _, path = request.path.removeprefix(prefix).partition("/")
        found = change_at(request.method, f"/{path}")
        return None if found is None else (found[0], {"broker": broker, **found[1]})
    resource = request.match_info.route.resource
    key = request.method, "" if resource is None else resource.canonical
    return (key, dict(request.match_info)) if key in CHANGES else None


def _result(status: int, code: str) -> AuditResult:
    if not status or code in _UNCONFIRMED:
        return "unconfirmed"
    return "done" if status < 400 else "refused"


def _problem(response: web.StreamResponse) -> tuple[str, str]:
    """Return code and text of an error response."""
    body = response.body if isinstance(response, web.Response) else None
    if response.status < 400 or not isinstance(body, bytes) or len(body) > SUMMARY_BYTES:
        return "", ""
    try:
        error = json.loads(body)["error"]
        return str(error["code"]), f"{error['code']}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        return "", ""


def _secrets(request: web.Request) -> tuple[str, ...]:
    stated = request.headers.get("Authorization", "")
    return stated, stated.rpartition(" ")[2], request.headers.get("Cookie", ""), *request.query.values()
