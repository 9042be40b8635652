"""Objects other than pods: the token, the configuration, common Services, budgets, policies."""

from __future__ import annotations

import secrets

from delaymq_operator.api import names
from delaymq_operator.manifests import Context, supporting_objects, token_secret
from delaymq_operator.reconcile.broker.apply.analytics_policy import needs_policy
from delaymq_operator.reconcile.broker.apply.ensure import check_ours, ensure
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass
from delaymq_operator.reconcile.endpoints import token_in

_TOKEN_BYTES = 32
_PRUNED_KINDS = ("Service", "PodDisruptionBudget", "NetworkPolicy")
"""Kinds whose objects are deleted when they are no longer desired; other leftover objects do no harm."""


async def ensure_token(p: BrokerPass) -> None:
    """Ensure the Secret with the HTTP token, which is created once; afterwards the pass may make changes.

    The Secret is read when the operator starts, and when a pod cannot start, possibly because it is missing.
    """
    pods = [*(pod for group in p.groups for pod in group.pods), *p.name_server_pods]
    if p.memory.token is None or not p.groups[0].made or any(pod.problem for pod in pods):
        live = await p.ctx.kube.get("Secret", p.namespace, names.token_secret(p.broker.name))
        if live is not None:
            check_ours(p, live)
        token = token_in(live) or p.memory.token or secrets.token_urlsafe(_TOKEN_BYTES)
        if token_in(live) is None:
            await p.ctx.kube.apply(token_secret(p.broker, token))
        p.memory.token = token
        _may_change(p, token)
        return
    _may_change(p, p.memory.token)


def _may_change(p: BrokerPass, token: str) -> None:
    settings = p.ctx.settings
    p.manifest_context = Context(
        image=p.broker.spec.image or settings.default_image,
        token=token,
        delay=p.delay,
        cluster_domain=settings.cluster_domain,
        operator_namespace=settings.operator_namespace,
        operator_labels=settings.operator_labels,
        replicates=any(group.replicated for group in p.groups),
    )


async def ensure_supporting_objects(p: BrokerPass) -> None:
    """Ensure the supporting objects, and delete unneeded ones."""
    ports = {pod.port for group in p.groups for pod in group.pods if pod.port is not None}
    desired = supporting_objects(p.broker, p.changing, [group.index for group in p.groups], ports)
    for manifest in desired:
        await ensure(p, manifest)
    keep = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in desired}
    if p.broker.spec.external is not None and p.own_name_servers:
        keep.add(("Service", names.namesrv_external_service(p.broker.name)))
    for group in p.groups:
        keep.add(("Service", names.group_object(p.broker.name, group.index)))
        if p.broker.spec.external is not None:
            keep.add(("Service", names.group_external_service(p.broker.name, group.index)))
    for kind in _PRUNED_KINDS:
        for body in p.ctx.cache.owned(kind, p.broker.uid):
            metadata = body["metadata"]
            if (kind, metadata["name"]) in keep or metadata.get("deletionTimestamp") or _needed_still(p, metadata):
                continue
            await p.ctx.kube.delete(kind, p.namespace, metadata["name"], uid=metadata["uid"])


def _needed_still(p: BrokerPass, metadata: dict[str, object]) -> bool:
    """Return whether an object is still needed: NameServers and their Services remain until no broker uses them."""
    labels = metadata.get("labels")
    component = labels.get(names.COMPONENT_LABEL) if isinstance(labels, dict) else None
    if component == "analytics":
        return needs_policy(p)
    return component == "namesrv" and not p.own_name_servers and p.name_servers.live is not None
