"""NameServers that a Broker may use: those of its own namespace, and those listed in the operator's settings.

Otherwise, everyone who may create Brokers in one namespace could register brokers, and let the operator change order
settings and routes, at another tenant's NameServers, since network policies admit the operator
(docs/decisions/0041-list-external-name-servers.md).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from delaymq_operator.api import Broker
from delaymq_operator.api.names import namesrv_pod_addresses
from delaymq_operator.reconcile.context import ReconcileContext
from delaymq_operator.reconcile.endpoints import pod_trust
from delaymq_operator.reconcile.ports import ServerTrust
from delaymq_operator.reconcile.secrets import server_trust

_SERVICE_SUFFIXES: Final = ("svc.cluster.local", "svc")


def name_servers_of(broker: Broker, ctx: ReconcileContext) -> tuple[str, ...]:
    """Return host:port of each NameServer that the operator may change. They do not replicate anything."""
    domain = ctx.settings.cluster_domain
    if not broker.spec.name_servers.addresses:
        replicas = broker.spec.name_servers.replicas
        return namesrv_pod_addresses(broker.name, broker.namespace, replicas, domain)
    refused = refused_addresses(broker, ctx)
    return tuple(
        _qualified(address, broker.namespace, domain)
        for address in broker.spec.name_servers.addresses
        if address not in refused
    )


async def name_server_trust(address: str, broker: Broker, ctx: ReconcileContext) -> ServerTrust | None:
    """Return how to verify the NameServer at an address; None: the operator connects to it in plaintext. KubeError."""
    if broker.spec.name_servers.addresses:
        return None
    pod = ctx.cache.get("Pod", broker.namespace, address.partition(".")[0])
    return pod_trust(pod or {}, await server_trust(broker, ctx))


def refused_addresses(broker: Broker, ctx: ReconcileContext) -> tuple[str, ...]:
    """Return addresses that a Broker must not use, except those already in use."""
    used = broker.status.name_servers
    return tuple(address for address in foreign_addresses(broker, ctx) if address not in used)


def foreign_addresses(broker: Broker, ctx: ReconcileContext) -> tuple[str, ...]:
    """Return addresses that are neither in the Broker's namespace nor listed."""
    settings = ctx.settings
    return tuple(
        address
        for address in broker.spec.name_servers.addresses
        if not _is_own(address, broker.namespace, settings.cluster_domain)
        and not is_listed(address, settings.name_server_addresses)
    )


def is_listed(address: str, listed: Iterable[str]) -> bool:
    """Return whether `host:port` matches an entry: a host or host:port, each with *, or a network such as
    10.1.0.0/16.
    """
    host = _host(address)
    return any(
        fnmatchcase(address.lower() if ":" in entry else host, entry.lower()) or _is_within(host, entry)
        for entry in listed
    )


def _is_within(host: str, entry: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry)
    except ValueError:
        return False


def _is_own(address: str, namespace: str, domain: str) -> bool:
    host = _host(address)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return False  # it may be that of a pod in any namespace
    for suffix in (domain.lower(), *_SERVICE_SUFFIXES):
        if host.endswith(f".{suffix}"):
            labels = host.removesuffix(f".{suffix}").split(".")
            return len(labels) in (2, 3) and labels[-1] == namespace
    labels = host.split(".")
    # A Service; a Service, or a pod of one, with its namespace.
    return len(labels) == 1 or (len(labels) in (2, 3) and labels[-1] == namespace)


def _host(address: str) -> str:
    host = address.rpartition(":")[0].lower()
    return host.removeprefix("[").removesuffix("]").removesuffix(".")


def _qualified(address: str, namespace: str, domain: str) -> str:
    # The operator is in a namespace of its own, where a bare name means another Service.
    host, _, port = address.rpartition(":")
    return address if "." in host or ":" in host else f"{host}.{namespace}.{domain}:{port}"
