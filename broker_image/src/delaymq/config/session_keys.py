"""Keys of accounts on HTTP: sessions, sign-in behind proxies, and the token of metrics."""

from __future__ import annotations

from dataclasses import dataclass

from delaymq.config.checks import parse_networks
from delaymq.config.fields import flag, number, text

_METRICS_TOKEN = (
    "bearer token required for `/metrics`, which is open without it; `httpToken` and accounts with the role `read` are"
    " accepted, too; never shown"
)
_METRICS_TOKEN_FILE = "file whose first line is that token; replaces `httpMetricsToken`"
_PLAIN_SIGN_IN = (
    "whether accounts may sign in to HTTP from other machines without TLS, so that eavesdroppers can read their secret"
    " keys"
)
_PROXIES = (
    "addresses and networks, separated by `;`, of proxies that terminate TLS, whose `X-Forwarded-For` and"
    " `X-Forwarded-Proto` headers are trusted for [sessions and the audit log](http.md#access)"
)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SessionKeys:
    """Keys of accounts on HTTP."""

    http_metrics_token: str = text("", _METRICS_TOKEN, ours=True, secret=True)
    http_metrics_token_file: str = text("", _METRICS_TOKEN_FILE, ours=True)
    http_session_idle_seconds: int = number(
        1_800, 60, 86_400, "seconds without a user's input after which a session of an account on HTTP ends", ours=True
    )
    http_session_max_seconds: int = number(
        43_200, 60, 604_800, "seconds after its sign-in at which a session ends", ours=True
    )
    http_plain_sign_in: bool = flag(False, _PLAIN_SIGN_IN, ours=True)
    http_trusted_proxies: str = text("", _PROXIES, ours=True, check=parse_networks)
