"""Interpretation of volume claims and of claim templates in StatefulSets."""

from __future__ import annotations

from typing import Any, Final

from delaymq_operator.api.broker import Storage
from delaymq_operator.manifests import parse_quantity, same_quantity
from delaymq_operator.reconcile.ports import Manifest

_STEP_BYTES: Final = 2**20


def requested(claim: Manifest | None) -> str | None:
    """Return the size that a claim requests."""
    resources = ((claim or {}).get("spec") or {}).get("resources") or {}
    found: str | None = (resources.get("requests") or {}).get("storage")
    return found


def capacity(claim: Manifest | None) -> str | None:
    """Return the capacity of a claim; None while it is not bound."""
    found: str | None = (((claim or {}).get("status") or {}).get("capacity") or {}).get("storage")
    return found


def storage_class(claim: Manifest | None) -> str | None:
    """Return the storage class of a claim; None if neither it nor the cluster defines one."""
    found: str | None = ((claim or {}).get("spec") or {}).get("storageClassName") or None
    return found


def is_unbound(claim: Manifest) -> bool:
    """Return whether a claim certainly has no volume and thus contains no messages."""
    phase = (claim.get("status") or {}).get("phase") or "Pending"
    return phase == "Pending" and capacity(claim) is None and not (claim.get("spec") or {}).get("volumeName")


def is_smaller(amount: str | None, desired: str) -> bool:
    """Return whether an amount is known and less than another."""
    return amount is not None and parse_quantity(amount) < parse_quantity(desired)


def least_request(claim: Manifest, size: str) -> str:
    """Return the smallest request to which a claim can be lowered, at least `size`.

    Kubernetes accepts only requests above the capacity, so it is 1 MiB above if the volume already has `size`.
    """
    has = capacity(claim)
    if has is None or is_smaller(has, size):
        return size
    least = int(parse_quantity(has)) + _STEP_BYTES
    return f"{least // _STEP_BYTES}Mi" if least % _STEP_BYTES == 0 else str(least)


def differs(claim: Manifest | None, storage: Storage) -> bool:
    """Return whether the size or class of a claim or claim template differs from the spec; a class chosen by the
    cluster does not.
    """
    chosen = storage.storage_class_name
    is_other = chosen is not None and storage_class(claim) != chosen
    return is_other or not same_quantity(requested(claim), storage.size)


def template_of(stateful_set: Manifest) -> dict[str, Any] | None:
    """Return the claim template of a StatefulSet."""
    return next(iter(stateful_set["spec"].get("volumeClaimTemplates") or []), None)


def template_differs(stateful_set: Manifest, storage: Storage) -> bool:
    """Return whether a StatefulSet's claim template differs, to which no default class is added."""
    template = template_of(stateful_set)
    return differs(template, storage) or storage_class(template) != storage.storage_class_name
