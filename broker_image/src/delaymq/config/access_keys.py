"""Keys of access control: accounts, their sessions on HTTP, and the audit log of what they change.

The classes are bases of configurations, as those of `tls_keys`.
"""

from __future__ import annotations

from dataclasses import dataclass

from delaymq.config.checks import parse_networks
from delaymq.config.errors import ConfigError
from delaymq.config.fields import choice, flag, number, text
from delaymq.config.tls_keys import DISABLED, TlsServerKeys

_RULES_PATH = (
    "file of access rules and [quotas](quotas.md); the folder"
    " `acl` next to it is read, too. Empty: `plain_acl.yml` in the folder of the `-c`"
    " file, or in the folder `conf` next to the store"
)
_ADMIN = (
    "whether administrative requests need TLS, a connection from this machine, or"
    " [the second signature](access-control.md#the-second-signature)"
)
_METADATA = "with `own`, accounts receive [metadata](access-control.md#metadata) only of what their rules permit"
_CERTIFICATES = (
    "whether unsigned requests are those of the account that the"
    " [client certificate](access-control.md#client-certificates) names"
)
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
_AUDIT_PATH = (
    "folder of the audit log. Empty: `delaymq/audit` in the store, none with `readOnly`; for a NameServer,"
    " `namesrv-audit` next to the file of `kvConfigPath`"
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


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AuditKeys:
    """Keys of the audit log."""

    audit_log_enable: bool = flag(True, "whether changes are recorded in the [audit log](audit.md)", ours=True)
    audit_log_path: str = text("", _AUDIT_PATH, ours=True)
    audit_log_max_bytes: int = number(
        16 << 20,
        65_536,
        1 << 30,
        "size in bytes at which the audit log starts its next file",
        ours=True,
    )
    audit_log_files: int = number(
        10, 2, 1_000, "number of files of the audit log; the oldest one is deleted for a new one", ours=True
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AccessKeys:
    """Keys of a broker's access control."""

    acl_enable: bool = flag(False, "whether requests must be signed: [access control](access-control.md)")
    acl_config_path: str = text("", _RULES_PATH, ours=True)
    acl_admin_needs_tls: bool = flag(False, _ADMIN, ours=True)
    acl_metadata: str = choice("open", "open", "own", about=_METADATA, ours=True)
    acl_certificate_accounts: bool = flag(False, _CERTIFICATES, ours=True)


def check_access(config: AccessKeys, tls: TlsServerKeys) -> None:
    """Raise ConfigError if certificates are to name accounts, but would not do so, or those of any issuer."""
    needed = {
        "aclEnable=true": config.acl_enable,
        "tls.server.mode=permissive or enforcing": tls.tls_server_mode != DISABLED,
        "tls.server.certPath": bool(tls.tls_server_cert_path),
        "tls.server.authClient=true": tls.tls_server_auth_client,
        "tls.server.need.client.auth=optional or require": tls.tls_server_need_client_auth != "none",
        "tls.server.trustCertPath": bool(tls.tls_server_trust_cert_path),
    }
    missing = [key for key, is_set in needed.items() if not is_set]
    if config.acl_certificate_accounts and missing:
        raise ConfigError(f"aclCertificateAccounts=true also needs {', '.join(missing)}: set these keys")
