"""RocketMQ's TLS keys, which broker and NameServer have in common, and what does not go together in them.

RocketMQ takes them as system properties of its JVM and from `tls.config.file`; here they are keys like all others.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from delaymq.config.errors import ConfigError
from delaymq.config.fields import choice, flag, text

DEFAULT_FILE: Final = "/etc/rocketmq/tls.properties"
NOT_IN_THE_FILE: Final = frozenset({"tls.server.mode", "tls.enable", "tls.config.file"})
"""RocketMQ reads all other keys of TLS from that file too."""
DISABLED: Final = "disabled"
PERMISSIVE: Final = "permissive"
ENFORCING: Final = "enforcing"


class TlsServerSettings(Protocol):
    """What a server's configuration says about TLS."""

    @property
    def tls_server_mode(self) -> str: ...
    @property
    def tls_test_mode_enable(self) -> bool: ...
    @property
    def tls_server_cert_path(self) -> str: ...
    @property
    def tls_server_key_path(self) -> str: ...
    @property
    def tls_server_key_password(self) -> str: ...
    @property
    def tls_server_need_client_auth(self) -> str: ...
    @property
    def tls_server_auth_client(self) -> bool: ...
    @property
    def tls_server_trust_cert_path(self) -> str: ...


def server_mode() -> Any:
    return choice(
        PERMISSIVE, DISABLED, PERMISSIVE, ENFORCING,
        about="whether clients may come with [TLS](tls.md), and whether they must",
    )  # fmt: skip


def test_mode() -> Any:
    return flag(True, "whether a self-signed certificate is made at the first TLS client when none is configured")


def config_file() -> Any:
    return text(DEFAULT_FILE, "a file of more TLS keys, read if it is there; those stated elsewhere go before it")


def server_certificate() -> Any:
    return text("", "file of the certificate and those that issued it, PEM; read again when it changes")


def server_key() -> Any:
    return text("", "file of its private key, PEM; read again when it changes")


def server_key_password() -> Any:
    return text("", "what the key is encrypted with; never shown", secret=True)


def need_client_auth() -> Any:
    return choice(
        "none", "none", "optional", "require", about="whether clients are asked for a certificate, and must have one"
    )


def auth_client() -> Any:
    return flag(False, "whether clients' certificates are verified")


def server_trust() -> Any:
    return text("", "file of the issuers that clients' certificates may have, PEM; empty: those of the system")


def use_tls() -> Any:
    return text("", "the same as `tls.enable`, and goes before it", check=true_or_false)


def enable() -> Any:
    return text(
        "", "whether NameServers are connected to with TLS; empty: if `tls.server.mode` is enforcing",
        check=true_or_false,
    )  # fmt: skip


def client_certificate() -> Any:
    return text("", "file of the certificate that NameServers are shown, PEM")


def client_key() -> Any:
    return text("", "file of its private key, PEM")


def client_key_password() -> Any:
    return text("", "what that key is encrypted with; never shown", secret=True)


def auth_server() -> Any:
    return flag(False, "whether NameServers' certificates are verified (their issuer and dates, not their names)")


def client_trust() -> Any:
    return text("", "file of the issuers that NameServers' certificates may have, PEM; empty: those of the system")


def true_or_false(value: str) -> None:
    """ConfigError for anything else but nothing."""
    if value not in ("", "true", "false"):
        raise ConfigError(f"{value[:100]!r} is neither true nor false")


def check_tls(config: TlsServerSettings) -> None:
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
