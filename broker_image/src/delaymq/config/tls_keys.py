"""RocketMQ's TLS keys: for servers, for brokers as clients, and checks of invalid combinations.

RocketMQ reads them from JVM system properties and `tls.config.file`; here they are ordinary keys. The classes are
bases of configurations, so they omit the generated dataclass methods, which would slow down each start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from delaymq.config.errors import ConfigError
from delaymq.config.fields import choice, flag, text

DEFAULT_FILE: Final = "/etc/rocketmq/tls.properties"
NOT_IN_THE_FILE: Final = frozenset({"tls.server.mode", "tls.enable", "tls.config.file"})
"""RocketMQ reads all other TLS keys from that file, too."""
DISABLED: Final = "disabled"
PERMISSIVE: Final = "permissive"
ENFORCING: Final = "enforcing"
ADDRESS_HOST: Final = "host"
"""Value of tls.client.serverName: each certificate must have the host of the address that was connected to."""
_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,253}")


def true_or_false(value: str) -> None:
    """Raise ConfigError unless `value` is empty, true or false."""
    if value not in ("", "true", "false"):
        raise ConfigError(f"{value[:100]!r} is invalid: use true or false")


def server_name(value: str) -> None:
    """Raise ConfigError unless `value` is empty, or can be a name in a certificate."""
    if value and not _NAME.fullmatch(value):
        raise ConfigError(f"{value[:100]!r} is invalid: use a DNS name, an IP address or {ADDRESS_HOST}")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TlsServerKeys:
    """TLS keys of servers."""

    tls_server_mode: str = choice(
        PERMISSIVE, DISABLED, PERMISSIVE, ENFORCING,
        about="whether clients may or must use [TLS](tls.md)",
    )  # fmt: skip
    tls_server_cert_path: str = text("", "file of the certificate chain, PEM; reloaded when it changes")
    tls_server_key_path: str = text("", "file of the certificate's private key, PEM; reloaded when it changes")
    tls_server_key_password: str = text("", "password of the private key; never shown", secret=True)
    tls_server_need_client_auth: str = choice(
        "none", "none", "optional", "require", about="whether a client certificate is requested or required"
    )
    tls_server_auth_client: bool = flag(False, "whether client certificates are verified")
    tls_server_trust_cert_path: str = text(
        "", "file of the CAs trusted for client certificates, PEM; empty: the system's"
    )
    tls_test_mode_enable: bool = flag(
        True, "whether to create a self-signed certificate for the first TLS client if none is configured"
    )
    tls_config_file: str = text(
        DEFAULT_FILE, "file of further TLS keys, read if it exists; keys set elsewhere take precedence"
    )
    http_tls: bool = flag(
        False, "whether the HTTP port serves only HTTPS, with the certificate of `tls.server.certPath`", ours=True
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TlsClientKeys:
    """TLS keys for a broker's connections to NameServers."""

    tls_enable: str = text(
        "", "whether to connect to NameServers with TLS; empty: only if `tls.server.mode` is enforcing",
        check=true_or_false,
    )  # fmt: skip
    use_tls: str = text("", "same as `tls.enable`; takes precedence over it", check=true_or_false)
    tls_client_cert_path: str = text("", "file of the client certificate for NameServers, PEM")
    tls_client_key_path: str = text("", "file of the client certificate's private key, PEM")
    tls_client_key_password: str = text("", "password of that private key; never shown", secret=True)
    tls_client_auth_server: bool = flag(
        False, "whether the certificates of NameServers and of other members of the group are verified"
    )
    tls_client_trust_cert_path: str = text(
        "", "file of the CAs trusted for these certificates, PEM; empty: the system's"
    )
    tls_client_server_name: str = text(
        "",
        "name that these certificates must have, or `host` for the host of each address; empty: names are not verified",
        ours=True,
        check=server_name,
    )


def check_tls_client(config: TlsClientKeys) -> None:
    """Raise ConfigError if a name would be verified without its issuer, which anybody could have certified."""
    if config.tls_client_server_name and not config.tls_client_auth_server:
        raise ConfigError(
            "tls.client.serverName has no effect without tls.client.authServer=true: set both, or remove the name"
        )


def check_tls(config: TlsServerKeys) -> None:
    """Raise ConfigError for invalid combinations."""
    if bool(config.tls_server_cert_path) != bool(config.tls_server_key_path):
        given, missing = "certPath", "keyPath"
        if config.tls_server_key_path:
            given, missing = missing, given
        raise ConfigError(f"tls.server.{given} is set, but tls.server.{missing} is not: set both")
    if config.tls_server_need_client_auth == "require" and not config.tls_server_auth_client:
        raise ConfigError(
            "tls.server.need.client.auth=require requests certificates that tls.server.authClient=false does not"
            " verify: set tls.server.authClient=true and name their CAs in tls.server.trustCertPath"
        )
    if config.http_tls and not config.tls_server_cert_path:
        raise ConfigError(
            "httpTls=true requires a certificate: set tls.server.certPath and tls.server.keyPath, or httpTls=false"
        )
    if config.tls_server_mode == ENFORCING and not config.tls_server_cert_path and not config.tls_test_mode_enable:
        raise ConfigError(
            "tls.server.mode=enforcing requires a certificate: set tls.server.certPath and tls.server.keyPath"
        )
