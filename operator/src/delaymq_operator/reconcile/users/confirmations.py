"""Confirmation by brokers, and by NameServers that restrict queries, that rules of a version are in force: kubelets
take up to two minutes to deliver them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from delaymq_operator.api import Broker
from delaymq_operator.api.names import GROUP_LABEL, NAMESRV_PORT, Component, group_pod, namesrv_pod
from delaymq_operator.manifests import (
    NAMES_ACCOUNTS_PATH,
    RULES_PATH,
    component_labels,
    listen_port,
    restricts_queries,
)
from delaymq_operator.reconcile.context import ReconcileContext
from delaymq_operator.reconcile.endpoints import broker_endpoint
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import Endpoint, Manifest
from delaymq_operator.reconcile.secrets import name_server_account, operator_account, server_trust

_NO_TOKEN: Final = ""
"""The request uses RocketMQ's protocol, which has no token."""
_LATER: Final = "its kubelet has not delivered the rules yet"


@dataclass(frozen=True)
class _Seen:
    """The last response of a pod's server."""

    at_ms: int
    version: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Lagging:
    """A server that may have older rules."""

    name: str
    """Its pod."""
    problem: str
    responds: bool
    """Whether it runs and has older rules; otherwise, its rules are unknown."""

    def __str__(self) -> str:
        return f"{self.name} ({self.problem})"


@dataclass(frozen=True)
class _Servers:
    """Servers of one kind that need the rules."""

    component: Component
    wanted: frozenset[str]
    """Pods that should exist."""
    path: str
    """Rule file in their pods."""


def _servers_of(broker: Broker) -> list[_Servers]:
    members = frozenset(
        group_pod(broker.name, group, ordinal)
        for group in range(broker.spec.size)
        for ordinal in range(broker.spec.replicas_per_group)
    )
    ordinals = range(broker.spec.name_servers.replicas if broker.hides_metadata else 0)
    pods = frozenset(namesrv_pod(broker.name, ordinal) for ordinal in ordinals)
    return [_Servers("broker", members, RULES_PATH), _Servers("namesrv", pods, NAMES_ACCOUNTS_PATH)]


class Confirmations:
    """Versions of the rules that the servers of one Broker reported, by uid of the pod."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    async def missing(self, broker: Broker, version: int, ctx: ReconcileContext) -> list[Lagging]:
        """Return the brokers, and the NameServers that need the accounts, that may have older rules. KubeError.

        These are all pods that exist, even if they are being deleted, and those that should. A pod that does not exist
        or is not running may start with an earlier copy of the Secret. Each server is queried at most once per second,
        and not again once it has the version.
        """
        pods: dict[str, Manifest] = {}
        wanted: set[str] = set()
        asked: list[tuple[_Servers, Manifest]] = []
        for servers in _servers_of(broker):
            labels = component_labels(broker, servers.component)
            existing = ctx.cache.labelled("Pod", broker.namespace, labels)
            if servers.component == "namesrv" and not broker.hides_metadata:
                # After a change back to Open, until they have restarted.
                existing = [pod for pod in existing if restricts_queries(pod)]
            asked += [(servers, pod) for pod in existing if self._is_due(pod, version, ctx)]
            pods |= {str(pod["metadata"]["name"]): pod for pod in existing}
            wanted |= servers.wanted
        uids = {_uid(pod) for pod in pods.values()}
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in uids}
        if asked:
            await self._ask_all(broker, asked, ctx)
        found = []
        for name in sorted(wanted | pods.keys()):
            seen = self._seen.get(_uid(pods[name])) if name in pods else None
            if seen is None:
                found.append(Lagging(name, "it is not running", responds=False))
            elif seen.version < version:
                found.append(Lagging(name, seen.problem or _LATER, responds=not seen.problem))
        return found

    def _is_due(self, pod: Manifest, version: int, ctx: ReconcileContext) -> bool:
        if not (pod.get("status") or {}).get("podIP"):
            return False
        seen = self._seen.get(_uid(pod))
        if seen is None:
            return True
        return seen.version < version and not 0 <= ctx.clock() - seen.at_ms < ctx.settings.progress_interval_s * 1000

    async def _ask_all(self, broker: Broker, asked: list[tuple[_Servers, Manifest]], ctx: ReconcileContext) -> None:
        trust = await server_trust(broker, ctx)
        accounts = {"broker": await operator_account(broker, ctx)}
        if any(servers.component == "namesrv" for servers, _ in asked):
            accounts["namesrv"] = await name_server_account(broker, ctx)
        requests = []
        for servers, pod in asked:
            account = accounts[servers.component]
            port = NAMESRV_PORT
            if servers.component == "broker":
                port = listen_port(broker.spec, int(pod["metadata"]["labels"].get(GROUP_LABEL, 0)))
            endpoint = broker_endpoint(pod, port, _NO_TOKEN, account, trust)
            if account is not None and endpoint is not None:
                requests.append(self._ask(_uid(pod), endpoint, servers.path, ctx))
        await asyncio.gather(*requests)

    async def _ask(self, uid: str, endpoint: Endpoint, path: str, ctx: ReconcileContext) -> None:
        try:
            versions = await ctx.admin.rule_versions(endpoint)
        except BrokerUnreachable as error:
            seen = _Seen(ctx.clock(), problem=f"it does not respond: {error.problem.rstrip('.')}")
        except BrokerRefused as error:
            seen = _Seen(ctx.clock(), problem=f"it rejects the operator's request: {error.message.rstrip('.')}")
        else:
            seen = _Seen(ctx.clock(), versions.get(path, 0))
        self._seen[uid] = seen


def _uid(pod: Manifest) -> str:
    return str(pod["metadata"].get("uid"))
