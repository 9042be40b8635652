"""Volumes grow: claims are patched while pods run, and StatefulSets made anew around the pods, since the size in a
StatefulSet cannot be changed."""

from __future__ import annotations

from typing import Any

from delaymq_operator.api.conditions import Reason
from delaymq_operator.manifests import parse_quantity
from delaymq_operator.reconcile.broker.sets import KEPT_ANNOTATION, kept_text, made_from
from delaymq_operator.reconcile.broker.state import BrokerPass, Group
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

# A refusal does not go away by asking; a changed storage class may be noticed this late.
_REFUSED_RETRY_S = 300.0


async def grow_volumes(p: BrokerPass) -> None:
    """Every volume is as large as spec.storage.size says, or the status says why not."""
    for group in p.groups:
        claim = group.claim
        if claim is None:
            continue
        if claim["metadata"].get("deletionTimestamp"):
            _hold_what_uses(p, group, claim)
            continue
        if group.surplus:
            continue
        size = p.broker.spec.storage.size
        if _smaller(requested(claim), size):
            claim = group.claim = await _ask_for_more(p, group, claim, size)
        if claim is None or _smaller(requested(claim), size):
            continue
        if _smaller(capacity(claim), str(requested(claim))):
            p.progressing(Reason.GROWING_VOLUMES, _growing(claim))
        live = group.set.live
        if live is not None and _smaller(_size_in(live), size):
            await _make_set_anew(p, group, claim, live["metadata"]["name"])


def _hold_what_uses(p: BrokerPass, group: Group, claim: Manifest) -> None:
    """A claim that was deleted goes, with all messages, when the pod that uses it ends: that is left to a person."""
    if group.pod is None or group.surplus:
        return
    name = claim["metadata"]["name"]
    group.hold = f"volume {name} would go with it"
    p.problem(
        Reason.VOLUME_BEING_DELETED,
        f"Volume {name} was deleted and goes, with its messages, when pod {group.pod.name} ends: the operator does not "
        "restart it. Save what is in it; then delete the pod, and it gets an empty volume.",
    )


def requested(claim: Manifest | None) -> str | None:
    """The size that a claim asks for."""
    resources = ((claim or {}).get("spec") or {}).get("resources") or {}
    found: str | None = (resources.get("requests") or {}).get("storage")
    return found


def capacity(claim: Manifest | None) -> str | None:
    """The size that a claim has; None while it is not bound."""
    found: str | None = (((claim or {}).get("status") or {}).get("capacity") or {}).get("storage")
    return found


def _size_in(stateful_set: Manifest) -> str | None:
    return next((requested(claim) for claim in stateful_set["spec"].get("volumeClaimTemplates") or []), None)


def _smaller(amount: str | None, wanted: str) -> bool:
    return amount is not None and parse_quantity(amount) < parse_quantity(wanted)


async def _ask_for_more(p: BrokerPass, group: Group, claim: Manifest, size: str) -> Manifest | None:
    name = claim["metadata"]["name"]
    refused_ms, why = p.memory.growth_refused_ms.get((name, size), (None, ""))
    if refused_ms is not None and p.now_ms - refused_ms < _REFUSED_RETRY_S * 1000:
        _say_refused(p, name, claim, why)
        return None
    patch = {"spec": {"resources": {"requests": {"storage": size}}}}
    try:
        done = await p.world.kube.patch("PersistentVolumeClaim", p.namespace, name, patch)
    except KubeError as error:
        if not (error.invalid or error.forbidden):
            raise
        p.memory.growth_refused_ms[name, size] = (p.now_ms, error.message)
        _say_refused(p, name, claim, error.message)
        return None
    p.memory.growth_refused_ms.pop((name, size), None)
    await p.event("Normal", "GrowingVolume", f"volume {name} of {group.name} grows from {requested(claim)} to {size}")
    p.progressing(Reason.GROWING_VOLUMES, f"Volume {name} grows to {size}.")
    return done


def _say_refused(p: BrokerPass, name: str, claim: Manifest, why: str) -> None:
    p.problem(
        Reason.VOLUME_CANNOT_GROW,
        f"Volume {name} stays at {requested(claim)}: {why}. Allow its storage class to expand volumes, or set "
        "spec.storage.size back.",
    )
    p.again(_REFUSED_RETRY_S)


def _growing(claim: Manifest) -> str:
    said = [
        f"{condition.get('type')}: {condition['message']}"
        for condition in (claim.get("status") or {}).get("conditions") or []
        if condition.get("status") == "True" and condition.get("message")
    ]
    what = f"Volume {claim['metadata']['name']} has {capacity(claim)} of {requested(claim)}"
    return f"{what} ({'; '.join(said)})." if said else f"{what}."


async def _make_set_anew(p: BrokerPass, group: Group, claim: Manifest, name: str) -> None:
    """Deletes the StatefulSet but not its pod; the next pass makes it again, and it adopts the pod.

    What the pod was made from is kept with the volume first: else a newer operator that makes the new StatefulSet
    would restart the pod.
    """
    group.hold = "its StatefulSet is made anew"
    p.progressing(Reason.GROWING_VOLUMES, f"The StatefulSet of {group.name} is made anew around its pod.")
    live = await p.world.kube.get("StatefulSet", p.namespace, name)
    if live is None or live["metadata"].get("deletionTimestamp") or not _smaller(_size_in(live), str(requested(claim))):
        return
    made = made_from(live)
    if made is not None:
        text = kept_text(p.broker.uid, made)
        await _annotate(p, claim, {KEPT_ANNOTATION: text})
    uid = live["metadata"]["uid"]
    await p.world.kube.delete("StatefulSet", p.namespace, name, uid=uid, propagation="Orphan")


async def _annotate(p: BrokerPass, claim: Manifest, annotations: dict[str, str]) -> None:
    there: dict[str, Any] = claim["metadata"].get("annotations") or {}
    if any(there.get(key) != value for key, value in annotations.items()):
        patch = {"metadata": {"annotations": annotations}}
        await p.world.kube.patch("PersistentVolumeClaim", p.namespace, claim["metadata"]["name"], patch)
