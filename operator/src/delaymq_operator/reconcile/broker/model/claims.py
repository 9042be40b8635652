"""What a volume claim says, and what a StatefulSet asks for."""

from __future__ import annotations

from typing import Any, Final

from delaymq_operator.api.broker import Storage
from delaymq_operator.manifests import parse_quantity, same_quantity
from delaymq_operator.reconcile.ports import Manifest

_STEP_BYTES: Final = 2**20


def requested(claim: Manifest | None) -> str | None:
    """The size that a claim asks for."""
    resources = ((claim or {}).get("spec") or {}).get("resources") or {}
    found: str | None = (resources.get("requests") or {}).get("storage")
    return found


def capacity(claim: Manifest | None) -> str | None:
    """The size that a claim has; None while it is not bound."""
    found: str | None = (((claim or {}).get("status") or {}).get("capacity") or {}).get("storage")
    return found


def storage_class(claim: Manifest | None) -> str | None:
    """The class of a claim; None when neither it nor the cluster names one."""
    found: str | None = ((claim or {}).get("spec") or {}).get("storageClassName") or None
    return found


def is_unbound(claim: Manifest) -> bool:
    """Whether there is certainly no volume, and so no message, behind a claim."""
    phase = (claim.get("status") or {}).get("phase") or "Pending"
    return phase == "Pending" and capacity(claim) is None and not (claim.get("spec") or {}).get("volumeName")


def is_smaller(amount: str | None, desired: str) -> bool:
    """Whether an amount is known, and below another."""
    return amount is not None and parse_quantity(amount) < parse_quantity(desired)


def least_request(claim: Manifest, size: str) -> str:
    """What a claim may be lowered to on the way to `size`. Kubernetes takes only what is above the capacity, so it is a
    MiB above it when the volume has `size` already."""
    has = capacity(claim)
    if has is None or is_smaller(has, size):
        return size
    least = int(parse_quantity(has)) + _STEP_BYTES
    return f"{least // _STEP_BYTES}Mi" if least % _STEP_BYTES == 0 else str(least)


def differs(claim: Manifest | None, storage: Storage) -> bool:
    """Whether a claim, or the template of one, asks for another size or class than the spec. A class that the cluster
    chose is not another one."""
    chosen = storage.storage_class_name
    is_other = chosen is not None and storage_class(claim) != chosen
    return is_other or not same_quantity(requested(claim), storage.size)


def template_of(stateful_set: Manifest) -> dict[str, Any] | None:
    """The claim that a StatefulSet makes."""
    return next(iter(stateful_set["spec"].get("volumeClaimTemplates") or []), None)


def template_differs(stateful_set: Manifest, storage: Storage) -> bool:
    """The same for the claim that a StatefulSet makes, to which nothing adds a default class."""
    template = template_of(stateful_set)
    return differs(template, storage) or storage_class(template) != storage.storage_class_name
