"""StatefulSets. Pod templates change only if the user changed something (the inputs), never with the operator's
version.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass

from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.names import APPLIED_ANNOTATION, GROUP, INPUTS_ANNOTATION
from delaymq_operator.manifests import (
    VOLUME_RETENTION,
    GroupContext,
    broker_stateful_set,
    keeps_plain_administrators,
    name_server_stateful_set,
    volume_retention,
)
from delaymq_operator.manifests.hashes import compact
from delaymq_operator.reconcile.broker.apply.compare import covers
from delaymq_operator.reconcile.broker.apply.ensure import check_ours, ensure
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

KEPT_ANNOTATION = f"{GROUP}/kept"
"""Annotation of a claim, while its StatefulSet is recreated: the inputs from which its pod was created."""
_IMMUTABLE = ("selector", "serviceName", "podManagementPolicy")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A StatefulSet to apply."""

    manifest: Manifest
    outdated_operator: bool
    """Whether this operator version would use a different pod template."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """Inputs from which pods were created."""

    inputs: str
    template: Manifest


def decide(rendered: Manifest, live: Manifest | None, kept: Made | None = None) -> Decision:
    """Return what to apply: the previously applied template while the inputs are the same, else the rendered one."""
    inputs = rendered["metadata"]["annotations"][INPUTS_ANNOTATION]
    before = made_from(live) or (kept if live is None else None)
    template = rendered["spec"]["template"]
    if before is not None and before.inputs == inputs and _is_made_from(before.template, inputs):
        template = before.template
    text = compact(template)
    metadata = rendered["metadata"]
    annotations = {**metadata["annotations"], APPLIED_ANNOTATION: text}
    spec = {**rendered["spec"], "template": template}
    if live is not None:
        _keep_immutable(spec, live["spec"])
    return Decision(
        manifest={**rendered, "metadata": {**metadata, "annotations": annotations}, "spec": spec},
        outdated_operator=text != compact(rendered["spec"]["template"]),
    )


def _is_made_from(template: Manifest, inputs: str) -> bool:
    """Return whether it is a valid template.

    Everyone who may edit the StatefulSet can write an invalid one into its annotation, which the API server would
    always reject.
    """
    metadata, spec = template.get("metadata"), template.get("spec")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    noted = annotations.get(INPUTS_ANNOTATION) if isinstance(annotations, dict) else None
    return noted == inputs and isinstance(spec, dict) and bool(spec.get("containers"))


def made_from(live: Manifest | None) -> Made | None:
    """Return the inputs recorded at a StatefulSet's last apply; None if there is nothing readable."""
    annotations = ((live or {}).get("metadata") or {}).get("annotations") or {}
    try:
        template = json.loads(annotations[APPLIED_ANNOTATION])
    except (KeyError, ValueError):
        return None
    return (
        Made(inputs=annotations.get(INPUTS_ANNOTATION, ""), template=template) if isinstance(template, dict) else None
    )


def _keep_immutable(desired: Manifest, live: Manifest) -> None:
    """Keep immutable fields; volumes grow by a new StatefulSet (volumes.py)."""
    for key in _IMMUTABLE:
        if key in live:
            desired[key] = live[key]
    if "volumeClaimTemplates" not in desired:
        return
    claims = copy.deepcopy(live.get("volumeClaimTemplates") or [])
    for claim in claims:
        claim.pop("status", None)
        claim.get("metadata", {}).pop("creationTimestamp", None)
    desired["volumeClaimTemplates"] = claims


def kept_text(owner_uid: str, made: Made) -> str:
    """Return the value of KEPT_ANNOTATION."""
    return compact({"uid": owner_uid, "inputs": made.inputs, "template": made.template})


def kept_by(claim: Manifest | None, owner_uid: str) -> Made | None:
    """Return the inputs stored at the claim, if they belong to this Broker and not to an earlier one."""
    try:
        kept = json.loads(((claim or {}).get("metadata") or {})["annotations"][KEPT_ANNOTATION])
        made = Made(inputs=kept["inputs"], template=kept["template"])
        return made if kept["uid"] == owner_uid and isinstance(made.template, dict) else None
    except (KeyError, TypeError, ValueError):
        return None


async def ensure_name_servers(p: BrokerPass) -> None:
    """Ensure the NameServers' StatefulSet; with existing NameServers, delete it when no broker needs it."""
    live = p.name_servers.live
    if p.own_name_servers:
        decision = decide(name_server_stateful_set(p.of_name_servers or p.broker, p.changing), live)
        p.name_servers.live = await ensure(p, decision.manifest)
        p.name_servers.outdated_operator = decision.outdated_operator


async def ensure_group_sets(p: BrokerPass) -> None:
    """Ensure the StatefulSet of each remaining group; of surplus groups only the volume retention is updated."""
    failed: KubeError | None = None
    for group in p.groups:
        try:
            waits = group.replicated and not group.follows_master
            if group.surplus or group.is_remade or group.address is None or waits:
                await _ensure_retention(p, group)
            else:
                await _ensure_group_set(p, group, group.address)
        except KubeError as error:
            # A group that cannot be applied must not block the others.
            failed = failed or error
    if failed is not None:
        raise failed


async def _ensure_group_set(p: BrokerPass, group: Group, address: str) -> None:
    live = group.set.live
    kept = next(filter(None, (kept_by(claim, p.broker.uid) for claim in group.claims)), None)
    if live is None:
        live = await p.ctx.kube.get("StatefulSet", p.namespace, f"{p.broker.name}-broker-{group.index}")
    desired = GroupContext(
        group=group.index,
        advertised_address=address,
        storage_size=p.broker.spec.storage.size,
        admin_needs_tls=_admin_needs_tls(p),
        members=group.size,
    )
    decision = decide(broker_stateful_set(p.of_brokers or p.broker, p.changing, desired), live, kept)
    group.set.live = await ensure(p, decision.manifest)
    group.set.outdated_operator = decision.outdated_operator
    if group.set.live["metadata"].get("deletionTimestamp"):
        p.progressing(Reason.WAITING_FOR_POD, f"StatefulSet {p.broker.name}-broker-{group.index} is being deleted.")


def _admin_needs_tls(p: BrokerPass) -> bool:
    """Return whether the Broker is new to access control: an upgrade must not lock out RocketMQ's tools."""
    known = [made_from(group.set.live) or kept_by(group.claim, p.broker.uid) for group in p.groups]
    return not any(keeps_plain_administrators(made.template) for made in known if made is not None)


async def _ensure_retention(p: BrokerPass, group: Group) -> None:
    """Ensure the volume retention according to the spec, even if nothing else may change."""
    live, desired = group.set.live, volume_retention(p.broker)
    if live is None or live["metadata"].get("deletionTimestamp") or covers(live["spec"].get(VOLUME_RETENTION), desired):
        return
    check_ours(p, live)
    patch = {"spec": {VOLUME_RETENTION: desired}}
    group.set.live = await p.ctx.kube.patch("StatefulSet", p.namespace, live["metadata"]["name"], patch)


async def drop_name_servers(p: BrokerPass) -> None:
    """Delete the operator's NameServers once all brokers use others."""
    live = p.name_servers.live
    if p.own_name_servers or live is None or live["metadata"].get("deletionTimestamp"):
        return
    current = all(
        group.set.settled and group.ready and all(pod.revision == group.set.revision for pod in group.pods)
        for group in p.desired_groups
    )
    if current:
        check_ours(p, live)
        await p.ctx.kube.delete("StatefulSet", p.namespace, live["metadata"]["name"], uid=live["metadata"]["uid"])
        await p.event(
            "Normal",
            "NameServersRemoved",
            ("all brokers use spec.nameServers.addresses: the operator's NameServers are deleted"),
        )
