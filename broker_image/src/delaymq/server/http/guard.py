"""Access checks: the token, and protection against requests from other sites through a user's browser.

Without a token, everything is open to this machine, including its browsers. A page of another origin could send forms
(so changes require a JSON content type and the same origin), or resolve its own name to 127.0.0.1 and read the
responses (so the Host header must be an address or an accepted name). With a token, neither is possible, because
browsers do not add the token to cross-origin requests.
"""

import hmac
import ipaddress
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from delaymq.config.checks import is_loopback
from delaymq.server.console import is_console_path
from delaymq.server.http.responses import error_response

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths that probes and Prometheus read without a token."""
READING_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
JSON: Final = "application/json"


GROUP_PREFIX: Final = "/brokers/"
"""Prefix of a path that a supervisor forwards to one of its broker groups; the group's name and path follow."""


def is_open_path(path: str) -> bool:
    """Return whether a path is served without a token."""
    if path.startswith(GROUP_PREFIX):
        path = "/" + path.removeprefix(GROUP_PREFIX).partition("/")[2]
    return path in OPEN_PATHS or is_console_path(path)


def guard(host: str, token: str, own_names: tuple[str, ...] = ()) -> Middleware:
    """Return a middleware that requires the token, or, on loopback without a token, rejects cross-origin changes.

    `host` is the bound address; `own_names` are accepted names besides localhost.
    """
    is_loopback_only = is_loopback(host)
    names = frozenset(name.lower() for name in own_names)

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_open_path(request.path):
            return await handler(request)
        if token:
            refusal = _without_token(request, token)
        elif is_loopback_only:
            refusal = _foreign(request, names)
        else:
            message = "no token is configured: set httpToken, or listen on loopback only (httpHost=127.0.0.1)"
            refusal = error_response(403, "token_not_configured", message)
        return await handler(request) if refusal is None else refusal

    return guarded


def _without_token(request: web.Request, token: str) -> web.Response | None:
    stated = request.headers.get("Authorization", "")
    if hmac.compare_digest(stated.encode(errors="replace"), f"Bearer {token}".encode()):
        return None
    refusal = error_response(
        401, "unauthorized", "the token is missing or wrong: send the header Authorization: Bearer TOKEN (httpToken)"
    )
    refusal.headers["WWW-Authenticate"] = 'Bearer realm="delaymq"'
    return refusal


def _foreign(request: web.Request, names: frozenset[str]) -> web.Response | None:
    stated = request.headers.get("Host")
    if stated is not None and not _is_own(stated, names):
        message = "without a token, the Host header must be an IP address, localhost or one of httpNames"
        return error_response(403, "host_not_allowed", message)
    if request.method in READING_METHODS or request.match_info.http_exception is not None:
        return None  # no change: the path does not exist or does not support the method
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != (stated or "").lower():
        return error_response(403, "origin_not_allowed", "cross-origin requests must not change state")
    # Browsers block cross-origin DELETE requests, which are never permitted here.
    if request.method != "DELETE" and request.content_type != JSON:
        return error_response(415, "json_needed", f"requests that change state require the header Content-Type: {JSON}")
    return None


def _is_own(stated: str, names: frozenset[str]) -> bool:
    try:
        name = (urlsplit(f"//{stated}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost") or name in names:
        return True
    try:
        ipaddress.ip_address(name)  # names can be resolved elsewhere, addresses cannot
    except ValueError:
        return False
    return True
