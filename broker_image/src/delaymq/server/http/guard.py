"""Access checks: the token, sessions of accounts, and protection against other sites in a user's browser.

Without a token, everything is open to this machine, including its browsers. A page of another origin could send forms
(so changes require a JSON content type and the same origin), or resolve its own name to 127.0.0.1 and read the
responses (so the Host header must be an address or an accepted name). With a token, neither is possible, because
browsers do not add the token to cross-origin requests.
"""

import hmac
import ipaddress
from typing import Final
from urllib.parse import unquote, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from delaymq.config.checks import is_loopback
from delaymq.server.console import is_console_path
from delaymq.server.http.responses import READING_METHODS, error_response, not_json, unauthorized
from delaymq.server.http.sign_in.accounts import ACCOUNT_HEADER, CALLER, HttpAccounts, caller_of
from delaymq.server.http.sign_in.callers import EVERYTHING, READ
from delaymq.server.http.sign_in.peers import PEER, PEER_HEADER, forwarded_peer

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths that probes and Prometheus read without a token."""
METRICS_PATH: Final = "/metrics"
SESSION_PATH: Final = "/api/v1/session"
GROUP_PREFIX: Final = "/brokers/"
"""Prefix of a path that a supervisor forwards to one of its broker groups; the group's name and path follow."""


def path_of_broker(path: str) -> str:
    """Return a path without the prefix by which a supervisor serves one of its groups."""
    if path.startswith(GROUP_PREFIX):
        return "/" + path.removeprefix(GROUP_PREFIX).partition("/")[2]
    return path


def is_open_path(path: str) -> bool:
    """Return whether a path is served without a token."""
    path = path_of_broker(path)
    return path in OPEN_PATHS or is_console_path(path)


def guard(
    host: str,
    token: str,
    own_names: tuple[str, ...] = (),
    *,
    accounts: HttpAccounts | None = None,
    metrics_token: str = "",
    is_inner: bool = False,
) -> Middleware:
    """Return a middleware that finds out who sends a request, and rejects the others and cross-origin changes.

    `host` is the bound address; `own_names` are accepted names besides localhost. With `accounts`, a session is
    accepted as well as the token, and nothing is open on loopback. `is_inner`: requests come from a supervisor, which
    has the token and may state an account. `metrics_token` closes /metrics.
    """
    is_loopback_only = is_loopback(host)
    names = frozenset(name.lower() for name in own_names)

    def refusal_of(request: web.Request, path: str) -> web.Response | None:
        if path == METRICS_PATH and _states(request, metrics_token):
            return None
        if accounts is not None and not is_inner:
            if path == SESSION_PATH and request.method == "POST":
                return accounts.foreign_sign_in(request)
            refusal = accounts.identify(request)
        elif path == METRICS_PATH and not token:
            return _without_token(request, metrics_token)
        else:
            refusal = unnamed_refusal(request)
        if refusal is None and path == METRICS_PATH and caller_of(request).role < READ:
            return error_response(403, "role_needed", "/metrics needs the role read, or the token of httpMetricsToken")
        return refusal

    def unnamed_refusal(request: web.Request) -> web.Response | None:
        request[CALLER] = EVERYTHING
        if is_inner:
            refusal = _without_token(request, token)
            return _forwarded(request, accounts) if refusal is None else refusal
        if token:
            return _without_token(request, token)
        if is_loopback_only:
            return _foreign(request, names)
        message = "no token is configured: set httpToken, or listen on loopback only (httpHost=127.0.0.1)"
        return error_response(403, "token_not_configured", message)

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        path = path_of_broker(request.path)
        if is_open_path(path) and not (path == METRICS_PATH and metrics_token):
            return await handler(request)
        refusal = refusal_of(request, path)
        return await handler(request) if refusal is None else refusal

    return guarded


def _states(request: web.Request, token: str) -> bool:
    stated = request.headers.get("Authorization", "")
    return hmac.compare_digest(stated.encode(errors="replace"), f"Bearer {token}".encode())


def _forwarded(request: web.Request, accounts: HttpAccounts | None) -> web.Response | None:
    """Let a request of a supervisor have the sender and the account that it states."""
    request[PEER] = forwarded_peer(request.headers.get(PEER_HEADER, ""))
    stated = request.headers.get(ACCOUNT_HEADER)
    if stated is None:
        return None
    caller = None if accounts is None else accounts.caller_of(unquote(stated))
    if caller is None:
        return error_response(401, "session_ended", "the account does not exist on this broker: sign in again")
    request[CALLER] = caller
    return None


def _without_token(request: web.Request, token: str) -> web.Response | None:
    if _states(request, token):
        return None
    text = "the token is missing or wrong: send the header Authorization: Bearer TOKEN (httpToken)"
    return unauthorized("unauthorized", text)


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
    return not_json(request)


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
