"""Sign-in with accounts, and identification of callers by their sessions."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Final

from aiohttp import web

from delaymq.config.checks import parse_networks
from delaymq.message.names import reply_topic
from delaymq.server.http.responses import READING_METHODS, error_response, not_json, unauthorized
from delaymq.server.http.sign_in.attempts import Attempts
from delaymq.server.http.sign_in.callers import EVERYTHING, Caller
from delaymq.server.http.sign_in.peers import PEER, Peer, Peers, network_of_host
from delaymq.server.http.sign_in.sessions import TOKEN_PREFIX, Session, Sessions

if TYPE_CHECKING:
    from delaymq.access.accounts import Account
    from delaymq.api_types.accounts import SignIn
    from delaymq.config import BrokerConfig

ACCOUNT_HEADER: Final = "DelayMQ-Account"
"""Account of a request that a supervisor forwards, in UTF-8 with percent encoding; it counts with the inner token."""
IDLE_HEADER: Final = "DelayMQ-Idle"
"""Header of a request that a page sends without its user's input, which does not prolong a session."""
CALLER: Final = web.RequestKey("delaymq.caller", Caller)
"""Key of a request: the Caller that `identify` found."""
STATED: Final = web.RequestKey("delaymq.stated", str)
"""Key of a sign-in request: the access key that it states."""
COOKIE: Final = "delaymq-session-"
SECURE_PREFIX: Final = "__Host-"
"""Prefix of cookies that no other host can set, and that are sent over TLS only."""
_BEARER: Final = "Bearer "
_DIGITS: Final = 12


class HttpAccounts:
    """Accounts of one server on HTTP."""

    def __init__(
        self,
        accounts: Callable[[], Mapping[str, Account]],
        config: BrokerConfig,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        """`accounts` returns the accounts in force, by access key."""
        self.sessions = Sessions(accounts, config.http_session_idle_seconds, config.http_session_max_seconds)
        self._accounts = accounts
        self._attempts = Attempts()
        self._allows_plain = config.http_plain_sign_in
        self._token = config.http_token
        self._reply_topic = reply_topic(config.broker_cluster_name)
        self._peers = Peers(parse_networks(config.http_trusted_proxies))
        self._now_s = now_s
        self._key = secrets.token_bytes(32)
        named = f"{config.broker_cluster_name}\0{config.broker_name}\0{config.store_path.absolute()}"
        # Brokers on one host name share its cookies, whatever their ports are.
        self._cookie = COOKIE + hashlib.sha256(named.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]

    def caller_of(self, access_key: str) -> Caller | None:
        """Return the caller with an account; None if the account does not exist."""
        account = self._accounts().get(access_key)
        return None if account is None else Caller(account, self._reply_topic)

    def identify(self, request: web.Request) -> web.Response | None:
        """Find the caller of a request by its token or session, and keep it there; return a refusal if there is none.

        Changes with a cookie must come from a page of this server.
        """
        peer = self._note_peer(request)
        stated = request.headers.get("Authorization")
        if stated is not None and self._token and _same(stated, _BEARER + self._token):
            request[CALLER] = EVERYTHING
            return None
        token = self._cookie_of(request, peer) if stated is None else stated.removeprefix(_BEARER)
        found = None if token is None else self._use(request, token)
        if found is None:
            return self._unknown(peer, stated, token)
        request[CALLER] = Caller(found[0], self._reply_topic)
        return None if stated is not None else foreign_change(request, peer.is_secure, needs_origin=True)

    def session_of(self, request: web.Request) -> Session | None:
        """Return the session of a request that was identified; None if it has the token instead."""
        found = self._use(request, self._stated_token(request))
        return None if found is None else found[1]

    def sign_in(self, request: web.Request, wanted: SignIn) -> tuple[str, Session] | web.Response:
        """Verify an account and begin a session, of which the token is returned; or return a refusal."""
        peer = self._note_peer(request)
        request[STATED] = key = wanted.access_key
        if not (peer.is_secure or peer.is_local or self._allows_plain):
            text = (
                "the secret key would be sent without TLS: use HTTPS, list the proxy that terminates TLS in"
                " httpTrustedProxies, or forward the port to this machine (httpPlainSignIn permits it nevertheless)"
            )
            return error_response(403, "tls_needed", text)
        now_s, network = self._now_s(), network_of_host(peer.host)
        wait_s = self._attempts.wait_s(network, key, now_s)
        if wait_s > 0:
            response = error_response(
                429, "too_many_sign_ins", f"too many sign-ins: try again in {math.ceil(wait_s)} s"
            )
            response.headers["Retry-After"] = str(math.ceil(wait_s))
            return response
        account = self._accounts().get(key)
        if account is not None and account.entry.certificate_only:
            account = None  # its secret key, which may be empty, admits nobody
        # The comparison takes the same time for accounts that do not exist.
        former = None if account is None else account.former
        stated = self._hash(_bytes(wanted.secret_key))
        is_same, is_former = (
            hmac.compare_digest(stated, self._hash(self._key if each is None else _bytes(each.entry.secret_key)))
            for each in (account, former)
        )
        if is_former and former is not None:
            account = former  # the session ends with this key
        elif not is_same:
            account = None
        if account is None:
            self._attempts.failed(network, key, now_s)
            return error_response(401, "sign_in_failed", "the access key or the secret key is wrong")
        self._attempts.succeeded(network, key, now_s)
        self.sessions.end(self._stated_token(request))  # a session is never continued with other rights
        request[CALLER] = Caller(account, self._reply_topic)
        return self.sessions.begin(account, now_s)

    def sign_out(self, request: web.Request) -> bool:
        """End the session of a request; return whether there was one."""
        return self.sessions.end(self._stated_token(request))

    def set_cookie(self, request: web.Request, response: web.Response, token: str) -> None:
        """Let the browser keep a session until it is closed; an empty token removes the cookie."""
        is_secure = self._note_peer(request).is_secure
        response.set_cookie(
            self._cookie_name(is_secure),
            token,
            path="/",
            httponly=True,
            secure=is_secure,
            samesite="Strict",
            max_age=None if token else 0,
        )

    def left_s(self, session: Session) -> tuple[float, float]:
        """Return the seconds until a session ends without use, and in any case."""
        now_s = self._now_s()
        end_s = session.began_s + self.sessions.lifetime_s - now_s
        return min(session.used_s + self.sessions.idle_s - now_s, end_s), end_s

    def review(self) -> None:
        """End the sessions that other rules do not allow."""
        self.sessions.review(self._now_s())

    def foreign_sign_in(self, request: web.Request) -> web.Response | None:
        """Return a refusal of a sign-in from a page of another origin, which could exchange a user's account."""
        return foreign_change(request, self._note_peer(request).is_secure)

    def _note_peer(self, request: web.Request) -> Peer:
        known = request.get(PEER)
        if known is None:
            request[PEER] = known = self._peers.peer(request)
        return known

    def _use(self, request: web.Request, token: str) -> tuple[Account, Session] | None:
        return self.sessions.use(token, self._now_s(), renews=IDLE_HEADER not in request.headers)

    def _stated_token(self, request: web.Request) -> str:
        stated = request.headers.get("Authorization")
        if stated is not None:
            return stated.removeprefix(_BEARER)
        return self._cookie_of(request, self._note_peer(request)) or ""

    def _cookie_of(self, request: web.Request, peer: Peer) -> str | None:
        return request.cookies.get(self._cookie_name(peer.is_secure))

    def _cookie_name(self, is_secure: bool) -> str:
        return SECURE_PREFIX + self._cookie if is_secure else self._cookie

    def _unknown(self, peer: Peer, stated: str | None, token: str | None) -> web.Response:
        if token is not None and token.startswith(TOKEN_PREFIX):
            code, text = "session_ended", "the session has ended: sign in again"
        elif stated is not None:
            code, text = "unauthorized", "the token is wrong: send that of httpToken or of a session, or sign in"
        else:
            code, text = (
                "sign_in_needed",
                "sign in with an account (POST /api/v1/session), or send the header Authorization: Bearer TOKEN",
            )
        refusal = unauthorized(code, text)
        if stated is None and token is not None:
            refusal.set_cookie(
                self._cookie_name(peer.is_secure), "", path="/", httponly=True, secure=peer.is_secure, max_age=0
            )
        return refusal

    def _hash(self, secret: bytes) -> bytes:
        return hashlib.blake2b(secret, key=self._key).digest()


def foreign_change(request: web.Request, is_secure: bool, *, needs_origin: bool = False) -> web.Response | None:
    """Return a refusal of a change that a page of another origin, a form or a script without an origin may send."""
    if request.method in READING_METHODS:
        return None
    origin = request.headers.get("Origin")
    if origin is None and needs_origin:
        text = "changes with a cookie require the header Origin: programs use a bearer token instead"
        return error_response(403, "origin_not_allowed", text)
    own = f"//{request.headers.get('Host', '')}".lower()
    # Behind a proxy that is not listed, the server cannot tell whether the page was loaded over TLS.
    allowed = ("https:" + own,) if is_secure else ("http:" + own, "https:" + own)
    if origin is not None and origin.lower() not in allowed:
        text = "cross-origin requests must not change state: a proxy has to forward the header Host unchanged"
        return error_response(403, "origin_not_allowed", text)
    return not_json(request)


def caller_of(request: web.Request) -> Caller:
    """Return the caller of a request; HTTPUnauthorized if nothing has identified it."""
    found: Caller | None = request.get(CALLER)
    if found is None:
        raise web.HTTPUnauthorized
    return found


def _same(first: str, second: str) -> bool:
    return hmac.compare_digest(_bytes(first), _bytes(second))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
