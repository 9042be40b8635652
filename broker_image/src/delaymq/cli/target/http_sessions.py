"""Sign-in of commands to brokers' HTTP APIs with the account that signs their other requests."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from delaymq.api_types.accounts import SessionState
from delaymq.cli.errors import CommandError
from delaymq.cli.target.accounts import SIGNING_HELP
from delaymq.http_client import AnswerTooLargeError, HttpClient, Reply

if TYPE_CHECKING:
    from delaymq.cli.target.accounts import SigningAccount

SESSION_PATH: Final = "/api/v1/session"
PLAIN_VARIABLE: Final = "DELAYMQ_HTTP_PLAIN_SIGN_IN"
"""Variable that permits to send a secret key over HTTP without TLS to another machine."""
NO_HEADERS: Final[Mapping[str, str]] = {}
_NEEDS_CREDENTIALS: Final = ("sign_in_needed", "session_ended", "unauthorized", "token_not_configured")
"""Error codes of requests that may succeed with other credentials."""
_NO_ACCOUNTS: Final = ("no_accounts", "unauthorized", "not_found", "method_not_allowed", "token_not_configured")
"""Error codes of brokers at which nobody can sign in."""
_open: list[tuple[HttpClient, str]] = []
"""Sessions that this command has begun."""


class SessionClient:
    """An HttpClient that signs in with an account when the broker requires it, or else uses the token.

    An account takes precedence over the token, so that changes are recorded under its name.
    """

    def __init__(self, client: HttpClient, account: SigningAccount | None, token: str) -> None:
        self.client = client
        self._account = account
        self._token = token
        client.use_token("" if account is not None else token)

    def request(
        self, method: str, path: str, data: bytes | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> Reply:
        """Send a request; raise the errors of HttpClient.request and of `sign_in`."""
        reply = self.client.request(method, path, data, headers)
        if self._account is None or reply.status not in (401, 403) or reply.problem.code not in _NEEDS_CREDENTIALS:
            return reply
        try:
            refusal = sign_in(self.client, self._account)
        except CommandError:
            if not self._token:
                raise
            refusal = reply
        if refusal is not None:
            if not self._token:
                return reply
            self._account = None
            self.client.use_token(self._token)
        return self.client.request(method, path, data, headers)


def credentials_hint(code: str) -> str:
    """Return what to do about a response 401 or 403 with this error code."""
    hint = "give the broker's httpToken in a file with --token-file, or in DELAYMQ_HTTP_TOKEN"
    return f"{SIGNING_HELP}; or {hint}" if code in ("sign_in_needed", "session_ended") else hint


def sign_in(client: HttpClient, account: SigningAccount) -> Reply | None:
    """Begin a session, which `client` uses from now on.

    Returns the response of a broker without accounts. Raises CommandError if the account is refused, or the secret key
    would be sent in plaintext, and the errors of HttpClient.request.
    """
    if not _is_protected(client.url) and os.environ.get(PLAIN_VARIABLE) != "true":
        raise CommandError(
            f"{client.url} has no TLS, and the secret key of account {account.access_key[:64]} would be sent in"
            " plaintext: use an https address, forward the port to this machine, or specify a token with --token-file"
            f" ({PLAIN_VARIABLE}=true sends it nevertheless)"
        )
    body = {"accessKey": account.access_key, "secretKey": account.secret_key, "bearer": True}
    client.use_token("")
    reply = client.request("POST", SESSION_PATH, json.dumps(body).encode())
    if reply.status >= http.client.BAD_REQUEST:
        problem = reply.problem
        if problem.code in _NO_ACCOUNTS:
            return reply
        text = problem.message or f"status {reply.status} {reply.reason}"
        raise CommandError(f"{client.url} refused to sign in account {account.access_key[:64]}: {text}")
    try:
        token = msgspec.json.decode(reply.data, type=SessionState).token
    except msgspec.DecodeError as error:
        raise CommandError(f"{client.url} did not return a session: is it a DelayMQ broker?") from error
    if not (token and token.isascii() and token.isprintable()):
        raise CommandError(f"{client.url} did not return a session: is it a DelayMQ broker?")
    client.use_token(token)
    _open.append((client, token))
    return None


def sign_out_all() -> None:
    """End the sessions that this command has begun, as far as their brokers respond."""
    while _open:
        client, token = _open.pop()
        client.use_token(token)
        # A session that remains expires.
        with contextlib.suppress(OSError, http.client.HTTPException, AnswerTooLargeError, ValueError):
            client.request("DELETE", SESSION_PATH)
        client.close()


def _is_protected(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
