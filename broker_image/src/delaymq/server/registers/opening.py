"""The register and the EndpointSlices that the settings name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from delaymq.config.register_keys import EtcdAddress, LeaseAddress, RegisterKeys, parse_register, parse_slices
from delaymq.server.http.loader import load
from delaymq.server.registers.register import Register, RegisterError
from delaymq.server.registers.service_account import ServiceAccount, api_server_url
from delaymq.server.tls.contexts import register_context

if TYPE_CHECKING:
    from delaymq.server.registers.endpoint_slices import EndpointSlices

MAX_PASSWORD_BYTES: Final = 4_096


async def open_register(
    keys: RegisterKeys, cluster: str, group: str, *, lease_s: int, environment: Mapping[str, str] = os.environ
) -> Register:
    """Return the register of a group, without a request to it. Raises RegisterError or ServerError."""
    address = parse_register(keys.replica_register)
    if isinstance(address, EtcdAddress):
        module = await load("delaymq.server.registers.etcd")
        of_etcd: Register = module.EtcdRegister(
            address.endpoints,
            key_of(keys.replica_register_prefix, cluster, group),
            tls=register_context(keys) if address.endpoints[0].startswith("https:") else None,
            user=keys.replica_register_user,
            password=lambda: _password(Path(keys.replica_register_password_file)),
        )
        return of_etcd
    if isinstance(address, LeaseAddress):
        module = await load("delaymq.server.registers.lease")
        account = ServiceAccount(Path(keys.replica_register_account_path))
        url = api_server_url(environment)
        of_lease: Register = module.LeaseRegister(url, address.namespace, address.name, account, lease_s=lease_s)
        return of_lease
    raise RegisterError("replicaRegister is empty: name the register of the group")


async def open_endpoints(keys: RegisterKeys, *, environment: Mapping[str, str] = os.environ) -> EndpointSlices | None:
    """Return the EndpointSlices of a group, without a request to them; None without `replicaEndpoint`.

    Raises RegisterError outside of a cluster.
    """
    address = parse_slices(keys.replica_endpoint)
    if address is None:
        return None
    module = await load("delaymq.server.registers.endpoint_slices")
    slices: EndpointSlices = module.EndpointSlices(
        api_server_url(environment),
        address.namespace,
        address.names,
        keys.replica_endpoint_address,
        ServiceAccount(Path(keys.replica_register_account_path)),
        timeout_s=keys.replica_register_timeout_ms / 1_000,
    )
    return slices


def key_of(prefix: str, cluster: str, group: str) -> str:
    """Return the key of a group in etcd. A name cannot contain a separator, which is percent-encoded."""
    return "/".join((prefix, quote(cluster, safe=""), quote(group, safe=""), "register"))


def _password(path: Path) -> str:
    """Return the first line of a file. It is read again for each authentication, so the password can be changed."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PASSWORD_BYTES)
    except OSError as error:
        raise RegisterError(f"cannot read replicaRegisterPasswordFile {path}: {error.strerror}") from error
    password = data.split(b"\n", 1)[0].decode(errors="replace").strip()
    if not password:
        raise RegisterError(f"the first line of replicaRegisterPasswordFile {path} is empty: write the password there")
    return password
