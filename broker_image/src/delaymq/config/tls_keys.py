"""RocketMQ's TLS keys: those of every server, those of brokers that connect, and what does not go together in them.

RocketMQ takes them as system properties of its JVM and from `tls.config.file`; here they are keys like all others.
The classes are parts of configurations, so they make none of what dataclasses get: each start would pay for it twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from delaymq.config.errors import ConfigError
from delaymq.config.fields import choice, flag, text

DEFAULT_FILE: Final = "/etc/rocketmq/tls.properties"
NOT_IN_THE_FILE: Final = frozenset({"tls.server.mode", "tls.enable", "tls.config.file"})
"""RocketMQ reads all other keys of TLS from that file too."""
DISABLED: Final = "disabled"
PERMISSIVE: Final = "permissive"
ENFORCING: Final = "enforcing"


def true_or_false(value: str) -> None:
    """ConfigError for anything else but nothing."""
    if value not in ("", "true", "false"):
        raise ConfigError(f"{value[:100]!r} is neither true nor false")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TlsServerKeys:
    """How a server takes TLS."""

    tls_server_mode: str = choice(
        PERMISSIVE, DISABLED, PERMISSIVE, ENFORCING,
        about="whether clients may come with [TLS](tls.md), and whether they must",
    )  # fmt: skip
    tls_server_cert_path: str = text(
        "", "file of the certificate and those that issued it, PEM; read again when it changes"
    )
    tls_server_key_path: str = text("", "file of its private key, PEM; read again when it changes")
    tls_server_key_password: str = text("", "what the key is encrypted with; never shown", secret=True)
    tls_server_need_client_auth: str = choice(
        "none", "none", "optional", "require", about="whether clients are asked for a certificate, and must have one"
    )
    tls_server_auth_client: bool = flag(False, "whether clients' certificates are verified")
    tls_server_trust_cert_path: str = text(
        "", "file of the issuers that clients' certificates may have, PEM; empty: those of the system"
    )
    tls_test_mode_enable: bool = flag(
        True, "whether a self-signed certificate is made at the first TLS client when none is configured"
    )
    tls_config_file: str = text(
        DEFAULT_FILE, "a file of more TLS keys, read if it is there; those stated elsewhere go before it"
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TlsClientKeys:
    """How a broker connects to NameServers."""

    tls_enable: str = text(
        "", "whether NameServers are connected to with TLS; empty: if `tls.server.mode` is enforcing",
        check=true_or_false,
    )  # fmt: skip
    use_tls: str = text("", "the same as `tls.enable`, and goes before it", check=true_or_false)
    tls_client_cert_path: str = text("", "file of the certificate that NameServers are shown, PEM")
    tls_client_key_path: str = text("", "file of its private key, PEM")
    tls_client_key_password: str = text("", "what that key is encrypted with; never shown", secret=True)
    tls_client_auth_server: bool = flag(
        False, "whether NameServers' certificates are verified (their issuer and dates, not their names)"
    )
    tls_client_trust_cert_path: str = text(
        "", "file of the issuers that NameServers' certificates may have, PEM; empty: those of the system"
    )


def check_tls(config: TlsServerKeys) -> None:
    """ConfigError for what does not go together."""
    if bool(config.tls_server_cert_path) != bool(config.tls_server_key_path):
        given, missing = "certPath", "keyPath"
        if config.tls_server_key_path:
            given, missing = missing, given
        raise ConfigError(f"tls.server.{given} is set and tls.server.{missing} is not: set both")
    if config.tls_server_need_client_auth == "require" and not config.tls_server_auth_client:
        raise ConfigError(
            "tls.server.need.client.auth=require asks for certificates that tls.server.authClient=false leaves"
            " unverified: set tls.server.authClient=true and name their issuers in tls.server.trustCertPath"
        )
    if config.tls_server_mode == ENFORCING and not config.tls_server_cert_path and not config.tls_test_mode_enable:
        raise ConfigError(
            "tls.server.mode=enforcing needs a certificate: set tls.server.certPath and tls.server.keyPath"
        )
