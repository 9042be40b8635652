"""Confirmation by brokers that rules of a version are in force: kubelets take up to two minutes to deliver them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from delaymq_operator.api import Broker
from delaymq_operator.api.names import GROUP_LABEL, group_pod
from delaymq_operator.manifests import RULES_PATH, component_labels, listen_port
from delaymq_operator.reconcile.context import ReconcileContext
from delaymq_operator.reconcile.endpoints import broker_endpoint
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import AdminAccount, Manifest, ServerTrust
from delaymq_operator.reconcile.secrets import operator_account, server_trust

_NO_TOKEN: Final = ""
"""The request uses RocketMQ's protocol, which has no token."""
_LATER: Final = "its kubelet has not delivered the rules yet"


@dataclass(frozen=True)
class _Seen:
    """The last response of a pod's broker."""

    at_ms: int
    version: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Lagging:
    """A broker that may have older rules."""

    name: str
    """Its pod."""
    problem: str
    responds: bool
    """Whether it runs and has older rules; otherwise, its rules are unknown."""

    def __str__(self) -> str:
        return f"{self.name} ({self.problem})"


class Confirmations:
    """Versions of the rules that the brokers of one Broker reported, by uid of the pod."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    async def missing(self, broker: Broker, version: int, ctx: ReconcileContext) -> list[Lagging]:
        """Return the brokers that may have older rules. KubeError.

        These are all pods that exist, even if they are being deleted, and those that should. A pod that does not exist
        or is not running may start with an earlier copy of the Secret. Each broker is queried at most once per second,
        and not again once it has the version.
        """
        pods = {
            str(pod["metadata"]["name"]): pod
            for pod in ctx.cache.labelled("Pod", broker.namespace, component_labels(broker, "broker"))
        }
        uids = {str(pod["metadata"].get("uid")) for pod in pods.values()}
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in uids}
        asked = [pod for pod in pods.values() if self._is_due(pod, version, ctx)]
        if asked:
            account, trust = await operator_account(broker, ctx), await server_trust(broker, ctx)
            if account is not None:
                await asyncio.gather(*(self._ask(broker, pod, account, trust, ctx) for pod in asked))
        wanted = {
            group_pod(broker.name, group, ordinal)
            for group in range(broker.spec.size)
            for ordinal in range(broker.spec.replicas_per_group)
        }
        found = []
        for name in sorted(wanted | pods.keys()):
            seen = self._seen.get(str(pods[name]["metadata"].get("uid"))) if name in pods else None
            if seen is None:
                found.append(Lagging(name, "it is not running", responds=False))
            elif seen.version < version:
                found.append(Lagging(name, seen.problem or _LATER, responds=not seen.problem))
        return found

    def _is_due(self, pod: Manifest, version: int, ctx: ReconcileContext) -> bool:
        if not (pod.get("status") or {}).get("podIP"):
            return False
        seen = self._seen.get(str(pod["metadata"].get("uid")))
        if seen is None:
            return True
        return seen.version < version and not 0 <= ctx.clock() - seen.at_ms < ctx.settings.progress_interval_s * 1000

    async def _ask(
        self, broker: Broker, pod: Manifest, account: AdminAccount, trust: ServerTrust | None, ctx: ReconcileContext
    ) -> None:
        group = int(pod["metadata"]["labels"].get(GROUP_LABEL, 0))
        endpoint = broker_endpoint(pod, listen_port(broker.spec, group), _NO_TOKEN, account, trust)
        if endpoint is None:
            return  # the pod has no address yet
        try:
            versions = await ctx.admin.rule_versions(endpoint)
        except BrokerUnreachable as error:
            seen = _Seen(ctx.clock(), problem=f"it does not respond: {error.problem.rstrip('.')}")
        except BrokerRefused as error:
            seen = _Seen(ctx.clock(), problem=f"it rejects the operator's request: {error.message.rstrip('.')}")
        else:
            seen = _Seen(ctx.clock(), versions.get(RULES_PATH, 0))
        self._seen[str(pod["metadata"].get("uid"))] = seen
