"""Keys of the register of a replicated group, a base of the broker's configuration once it has replicas."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from delaymq.config.checks import is_loopback
from delaymq.config.errors import ConfigError
from delaymq.config.fields import number, text

ACCOUNT_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
MAX_ENDPOINTS: Final = 16
MAX_SLICES: Final = 4
_EXAMPLES: Final = "use etcd:https://HOST:2379,https://HOST:2379 or kubernetes:NAMESPACE/LEASE"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LEASE: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._-]{1,100}){1,8}")


@dataclass(frozen=True)
class EtcdAddress:
    """The register is in etcd."""

    endpoints: tuple[str, ...]
    """URLs of members, without a path."""


@dataclass(frozen=True)
class LeaseAddress:
    """The register is in a Lease."""

    namespace: str
    name: str


@dataclass(frozen=True)
class SliceAddress:
    """EndpointSlices with the address of the master, one for each Service of the group."""

    namespace: str
    names: tuple[str, ...]


RegisterAddress: TypeAlias = EtcdAddress | LeaseAddress


def parse_register(value: str) -> RegisterAddress | None:
    """Parse `etcd:URL,URL` or `kubernetes:NAMESPACE/LEASE`; None if empty. Raises ConfigError."""
    if not value:
        return None
    kind, _, rest = value.partition(":")
    if kind == "etcd":
        return _parse_etcd(rest)
    if kind == "kubernetes":
        namespace, _, name = rest.partition("/")
        if not _NAMESPACE.fullmatch(namespace) or not _LEASE.fullmatch(name):
            raise ConfigError(f"{rest[:100]!r} is not the name of a Lease: use kubernetes:NAMESPACE/LEASE")
        return LeaseAddress(namespace, name)
    raise ConfigError(f"{value[:100]!r} is not a register: {_EXAMPLES}")


def parse_slices(value: str) -> SliceAddress | None:
    """Parse `kubernetes:NAMESPACE/SLICE,SLICE`; None if empty. Raises ConfigError."""
    if not value:
        return None
    kind, _, rest = value.partition(":")
    namespace, _, listed = rest.partition("/")
    names = tuple(word.strip() for word in listed.split(","))
    if kind != "kubernetes" or not _NAMESPACE.fullmatch(namespace) or not all(map(_LEASE.fullmatch, names)):
        raise ConfigError(f"{value[:100]!r} names no EndpointSlices: use kubernetes:NAMESPACE/SLICE")
    if len(names) > MAX_SLICES or len(set(names)) < len(names):
        raise ConfigError(f"{value[:100]!r} has to name 1 to {MAX_SLICES} different EndpointSlices")
    return SliceAddress(namespace, names)


def check_ip(value: str) -> None:
    """Raise ConfigError unless `value` is empty or an IP address."""
    try:
        if value:
            ipaddress.ip_address(value)
    except ValueError:
        raise ConfigError(f"{value[:100]!r} is not an IP address") from None


def check_prefix(value: str) -> None:
    """Raise ConfigError unless `value` is a prefix of keys."""
    if not _PREFIX.fullmatch(value):
        raise ConfigError(f"{value[:100]!r} is not a prefix of keys: use a path, such as /delaymq")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RegisterKeys:
    """Which register a group uses, and how to reach it."""

    replica_register: str = text(
        "",
        "register that states which member is the master: `etcd:` and URLs separated by commas, or"
        " `kubernetes:NAMESPACE/LEASE`; empty: no replicas",
        ours=True,
        check=parse_register,
    )
    replica_register_prefix: str = text(
        "/delaymq", "etcd: prefix of the key, to which cluster and group are appended", ours=True, check=check_prefix
    )
    replica_register_user: str = text("", "etcd: user, if etcd requires authentication", ours=True)
    replica_register_password_file: str = text("", "etcd: file whose first line is the user's password", ours=True)
    replica_register_account_path: str = text(
        ACCOUNT_FOLDER, "Kubernetes: folder with the files `token` and `ca.crt` of the service account", ours=True
    )
    replica_endpoint: str = text(
        "",
        "Kubernetes: EndpointSlices to which a new master writes its address, as `kubernetes:NAMESPACE/SLICE`; several"
        " names are separated by commas",
        ours=True,
        check=parse_slices,
    )
    replica_endpoint_address: str = text(
        "", "Kubernetes: IP address of this pod, for `replicaEndpoint`", ours=True, check=check_ip
    )
    replica_register_timeout_ms: int = number(
        1_000, 100, 60_000, "ms after which a request to the register counts as failed", ours=True
    )
    tls_register_cert_path: str = text(
        "",
        "file of the client certificate for etcd, PEM; its subject has no common name if `replicaRegisterUser` is set",
        ours=True,
    )
    tls_register_key_path: str = text("", "file of the client certificate's private key, PEM", ours=True)
    tls_register_key_password: str = text("", "password of that private key; never shown", ours=True, secret=True)
    tls_register_trust_cert_path: str = text(
        "", "file of the CAs trusted for etcd's certificates, PEM; empty: the system's", ours=True
    )


def check_register(keys: RegisterKeys) -> None:
    """Raise ConfigError for invalid combinations."""
    address = parse_register(keys.replica_register)
    if bool(keys.tls_register_cert_path) != bool(keys.tls_register_key_path):
        raise ConfigError("set both tls.register.certPath and tls.register.keyPath, or neither")
    if bool(keys.replica_register_user) != bool(keys.replica_register_password_file):
        raise ConfigError("set both replicaRegisterUser and replicaRegisterPasswordFile, or neither")
    if isinstance(address, EtcdAddress) and keys.replica_register_user:
        for url in address.endpoints:
            if url.startswith("http:") and not is_loopback(urlsplit(url).hostname or ""):
                raise ConfigError(f"replicaRegister: the password would be sent to {url} unencrypted: use https")
    if bool(keys.replica_endpoint) != bool(keys.replica_endpoint_address):
        raise ConfigError("set both replicaEndpoint and replicaEndpointAddress, or neither")
    if (isinstance(address, LeaseAddress) or keys.replica_endpoint) and not Path(
        keys.replica_register_account_path
    ).is_absolute():
        raise ConfigError("replicaRegisterAccountPath is not an absolute path")


def _parse_etcd(value: str) -> EtcdAddress:
    urls = [word.strip().rstrip("/") for word in value.split(",") if word.strip()]
    for url in urls:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ConfigError(f"{url[:100]!r} is not a URL: use https://HOST:2379") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or "@" in parts.netloc:
            raise ConfigError(f"{url[:100]!r} is not the URL of an etcd member: use https://HOST:2379")
        if parts.path or parts.query or parts.fragment or not url.isprintable() or " " in url:
            raise ConfigError(f"{url[:100]!r} has more than scheme, host and port: use https://HOST:2379")
    if not 0 < len(urls) <= MAX_ENDPOINTS or len(set(urls)) < len(urls):
        raise ConfigError(f"etcd: requires 1 to {MAX_ENDPOINTS} different URLs: {_EXAMPLES}")
    if len({urlsplit(url).scheme for url in urls}) > 1:
        raise ConfigError("etcd: the URLs use http and https: use one of them")
    return EtcdAddress(tuple(urls))
