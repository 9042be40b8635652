"""Claims without a volume: the cause, and a replacement when the spec is corrected.

Size and class are immutable in an unbound claim and in a StatefulSet: both are recreated. A claim that is or ever was
bound is never deleted here.
"""

from __future__ import annotations

from typing import Final

from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.names import GROUP
from delaymq_operator.api.resource import ms_of_timestamp
from delaymq_operator.manifests import component_labels
from delaymq_operator.reconcile.broker.apply.ensure import check_ours
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.broker.model.claims import differs, is_unbound, storage_class, template_differs
from delaymq_operator.reconcile.broker.observe.late_pods import last_warning
from delaymq_operator.reconcile.ports import Manifest

UNWANTED_ANNOTATION: Final = f"{GROUP}/unwanted"
"""Annotation of an unbound claim whose StatefulSet is being deleted: the spec has changed since its creation."""
_BINDING_MS: Final = 15_000
"""Time that a new volume may take."""


async def report_unbound_volumes(p: BrokerPass) -> None:
    """Report claims that should have a volume by now."""
    is_any_bound = any(not is_unbound(claim) for group in p.groups for claim in group.claims)
    todo = "Create the storage class or whatever else is missing"
    if not is_any_bound:
        todo += ", or correct spec.storage, whose class and size can be changed while no volume of the Broker is bound"
    for claim in (claim for group in p.desired_groups for claim in group.claims):
        if claim["metadata"].get("deletionTimestamp") or not is_unbound(claim):
            continue
        why = await _why_unbound(p, claim)
        if why:
            p.problem(Reason.VOLUME_NOT_BOUND, f"Volume {claim['metadata']['name']} is not bound: {why}. {todo}.")


async def _why_unbound(p: BrokerPass, claim: Manifest) -> str:
    """Return why a claim is not bound; empty while it may still be bound."""
    metadata = claim["metadata"]
    waited_ms = p.now_ms - (ms_of_timestamp(metadata.get("creationTimestamp")) or p.now_ms)
    if waited_ms < _BINDING_MS:
        return ""
    chosen = storage_class(claim)
    if chosen is None:
        return "it has no storage class, and the cluster has no default class"
    warning = await last_warning(p, metadata["name"], metadata["uid"])
    if warning is not None:
        return f"storage class {chosen}: {warning.reason}: {warning.message.rstrip('.')}"
    if waited_ms >= p.ctx.settings.progress_deadline_s * 1000:
        return f"storage class {chosen} has provisioned no volume since {metadata['creationTimestamp']}"
    return ""


async def replace_unbound_volumes(p: BrokerPass) -> None:
    """Recreate claims without a volume whose size or class differs from the spec."""
    for group in p.desired_groups:
        live = group.set.live
        is_other_set = live is not None and template_differs(live, p.broker.spec.storage)
        if not group.claims and live is not None and is_other_set and not group.ready:
            await _delete_set(p, group, live)
        for claim in group.claims:
            is_other = is_other_set or _is_unwanted(claim) or differs(claim, p.broker.spec.storage)
            if is_unbound(claim) and is_other:
                await _replace(p, group, claim)
                break


def _is_unwanted(claim: Manifest) -> bool:
    return UNWANTED_ANNOTATION in (claim["metadata"].get("annotations") or {})


async def _replace(p: BrokerPass, group: Group, claim: Manifest) -> None:
    """Delete first the StatefulSet, which would create the claim again, then the claim, one per step.

    The pod, which never ran, is kept and waits for the next claim.
    """
    name = claim["metadata"]["name"]
    p.progressing(Reason.CREATING, f"Volume {name} is not bound and is being recreated according to spec.storage.")
    group.is_remade = True
    labels = component_labels(p.broker, "broker")
    found = await p.ctx.kube.list("PersistentVolumeClaim", p.namespace, labels=labels)
    fresh = next((each for each in found if each["metadata"]["name"] == name), None)
    if fresh is None or not is_unbound(fresh):
        # The next pass observes the change.
        return
    if not _is_unwanted(fresh):
        # The claim alone does not reveal whether its class is the cluster's default or was set in an earlier spec.
        patch = {"metadata": {"annotations": {UNWANTED_ANNOTATION: "true"}}}
        fresh = await p.ctx.kube.patch("PersistentVolumeClaim", p.namespace, name, patch)
    if group.set.live is not None:
        await _delete_set(p, group, group.set.live)
    elif is_unbound(fresh) and not fresh["metadata"].get("deletionTimestamp"):
        metadata = fresh["metadata"]
        # Only this version, since the claim may be bound concurrently.
        await p.ctx.kube.delete(
            "PersistentVolumeClaim", p.namespace, name, uid=metadata["uid"], version=metadata["resourceVersion"]
        )
        await p.event("Normal", "ReplacingVolume", f"volume {name} was never bound and is being recreated")


async def _delete_set(p: BrokerPass, group: Group, live: Manifest) -> None:
    group.is_remade = True
    metadata = live["metadata"]
    if metadata.get("deletionTimestamp"):
        return
    check_ours(p, live)
    # Orphan: otherwise, with deleteClaim, even a bound claim would be deleted with its StatefulSet.
    await p.ctx.kube.delete("StatefulSet", p.namespace, metadata["name"], uid=metadata["uid"], propagation="Orphan")
    group.set.live = None
