"""Growth of volumes: claims are patched while pods run, and StatefulSets are recreated around the pods, since their
claim templates are immutable.
"""

from __future__ import annotations

from typing import Any

from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.names import GROUP
from delaymq_operator.manifests import same_quantity
from delaymq_operator.reconcile.broker.apply.stateful_sets import KEPT_ANNOTATION, kept_text, made_from
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.broker.model.claims import (
    capacity,
    is_smaller,
    is_unbound,
    least_request,
    requested,
    template_differs,
)
from delaymq_operator.reconcile.broker.model.members import Member
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

_REFUSED_RETRY_S = 300.0
"""A retry rarely succeeds; a changed storage class is detected after this time at the latest."""
ASKED_ANNOTATION = f"{GROUP}/asked"
"""Annotation of a claim: the size last requested by the operator. A larger size requested by others is kept."""


async def grow_volumes(p: BrokerPass) -> None:
    """Grow every volume to spec.storage.size, or report why it cannot grow."""
    size = p.broker.spec.storage.size
    for group in p.groups:
        for member in group.members:
            if member.claim is not None:
                member.claim = await _grow_volume(p, group, member, member.claim)
        live = group.set.live
        if group.surplus or live is None or not template_differs(live, p.broker.spec.storage):
            continue
        claims = group.claims
        if claims and not any(
            claim["metadata"].get("deletionTimestamp") or is_unbound(claim) or is_smaller(requested(claim), size)
            for claim in claims
        ):
            await _recreate_stateful_set(p, group, claims, live["metadata"]["name"])


async def _grow_volume(p: BrokerPass, group: Group, member: Member, claim: Manifest) -> Manifest:
    """Return the claim after a request for another size, if one was necessary."""
    size = p.broker.spec.storage.size
    if claim["metadata"].get("deletionTimestamp"):
        _block_restarts(p, group, member, claim)
        return claim
    if group.surplus or is_unbound(claim):
        return claim
    if is_smaller(requested(claim), size):
        claim = await _request_growth(p, group, claim, size)
    elif is_smaller(capacity(claim), str(requested(claim))):
        claim = await _request_reduction(p, group, claim, least_request(claim, size))
    if not is_smaller(requested(claim), size) and is_smaller(capacity(claim), size):
        _report_growing(p, claim)
    return claim


def _block_restarts(p: BrokerPass, group: Group, member: Member, claim: Manifest) -> None:
    """Prevent restarts of pods whose claim was deleted: the claim and its messages are lost when the pod stops, so a
    user has to decide.
    """
    if member.pod is None or group.surplus or is_unbound(claim) or p.lost_volume(claim):
        return
    name = claim["metadata"]["name"]
    group.hold = f"volume {name} would be deleted when the pod stops"
    p.problem(
        Reason.VOLUME_BEING_DELETED,
        f"Volume {name} is marked for deletion. Its messages are lost when pod {member.name} stops, so the operator "
        "does not restart the pod. Back up the volume, then delete the pod; the next pod gets an empty volume.",
    )


async def _request_growth(p: BrokerPass, group: Group, claim: Manifest, size: str) -> Manifest:
    """Return the claim after requesting a larger size; unchanged if the API server rejects it."""
    name = claim["metadata"]["name"]
    done, why = await _patch_request(p, claim, size)
    if done is None:
        p.problem(
            Reason.VOLUME_CANNOT_GROW,
            f"Volume {name} remains at {requested(claim)}: {why}. Allow its storage class to expand volumes, or set "
            f"spec.storage.size back to {requested(claim)}.",
        )
        p.requeue(_REFUSED_RETRY_S)
        return claim
    await p.event(
        "Normal", "GrowingVolume", f"volume {name} of {group.name} is growing from {requested(claim)} to {size}"
    )
    p.progressing(Reason.GROWING_VOLUMES, f"Volume {name} is growing to {size}.")
    return done


async def _request_reduction(p: BrokerPass, group: Group, claim: Manifest, size: str) -> Manifest:
    """Lower a request above both the capacity and the spec.

    Its storage may retry indefinitely, and quotas count the request. Kubernetes before 1.32 rejects this, which does
    no harm.
    """
    asked = (claim["metadata"].get("annotations") or {}).get(ASKED_ANNOTATION)
    if not same_quantity(asked, requested(claim)) or not is_smaller(size, str(requested(claim))):
        return claim
    name = claim["metadata"]["name"]
    done, why = await _patch_request(p, claim, size)
    if done is None:
        what = f"volume {name} of {group.name} still requests {requested(claim)} and has {capacity(claim)}: {why}"
        await p.event("Warning", "GrowthNotWithdrawn", what)
        return claim
    what = f"volume {name} of {group.name} requests {size} instead of {requested(claim)}"
    await p.event("Normal", "GrowthWithdrawn", what)
    return done


async def _patch_request(p: BrokerPass, claim: Manifest, size: str) -> tuple[Manifest | None, str]:
    """Return the claim with another size, or why not; a rejection is remembered for some minutes."""
    name = claim["metadata"]["name"]
    refused_ms, why = p.memory.growth_refused_ms.get((name, size), (None, ""))
    if refused_ms is not None and p.now_ms - refused_ms < _REFUSED_RETRY_S * 1000:
        return None, why
    patch = {
        "metadata": {"annotations": {ASKED_ANNOTATION: size}},
        "spec": {"resources": {"requests": {"storage": size}}},
    }
    try:
        done = await p.ctx.kube.patch("PersistentVolumeClaim", p.namespace, name, patch)
    except KubeError as error:
        if not (error.invalid or error.forbidden):
            raise
        p.memory.growth_refused_ms[name, size] = (p.now_ms, error.message)
        return None, error.message
    p.memory.growth_refused_ms.pop((name, size), None)
    return done, ""


def _report_growing(p: BrokerPass, claim: Manifest) -> None:
    """Report the progress, and whether the storage has given up (Kubernetes 1.32 or later)."""
    status = claim.get("status") or {}
    said = [
        f"{condition.get('type')}: {condition['message']}"
        for condition in status.get("conditions") or []
        if condition.get("status") == "True" and condition.get("message")
    ]
    what = f"Volume {claim['metadata']['name']} has {capacity(claim)} of {requested(claim)}"
    what = f"{what} ({'; '.join(said)})." if said else f"{what}."
    verdict = str((status.get("allocatedResourceStatuses") or {}).get("storage") or "")
    if verdict.endswith("Infeasible"):
        advice = f"The storage does not support that size ({verdict}): set spec.storage.size back to {capacity(claim)}."
        p.problem(Reason.VOLUME_CANNOT_GROW, f"{what} {advice}")
    else:
        p.progressing(Reason.GROWING_VOLUMES, what)


async def _recreate_stateful_set(p: BrokerPass, group: Group, claims: list[Manifest], name: str) -> None:
    """Delete the StatefulSet but not its pods; the next pass creates it again, and it adopts the pods.

    The pods' inputs are stored at the volumes first: otherwise a newer operator that creates the new StatefulSet would
    restart the pods.
    """
    group.hold = "its StatefulSet is being recreated"
    p.progressing(
        Reason.GROWING_VOLUMES, f"The StatefulSet of {group.name} is being recreated without restarting its pods."
    )
    live = await p.ctx.kube.get("StatefulSet", p.namespace, name)
    if live is None or live["metadata"].get("deletionTimestamp") or not template_differs(live, p.broker.spec.storage):
        return
    made = made_from(live)
    if made is not None:
        text = kept_text(p.broker.uid, made)
        for claim in claims:
            await _annotate(p, claim, {KEPT_ANNOTATION: text})
    uid = live["metadata"]["uid"]
    await p.ctx.kube.delete("StatefulSet", p.namespace, name, uid=uid, propagation="Orphan")


async def _annotate(p: BrokerPass, claim: Manifest, annotations: dict[str, str]) -> None:
    there: dict[str, Any] = claim["metadata"].get("annotations") or {}
    if any(there.get(key) != value for key, value in annotations.items()):
        patch = {"metadata": {"annotations": annotations}}
        await p.ctx.kube.patch("PersistentVolumeClaim", p.namespace, claim["metadata"]["name"], patch)
