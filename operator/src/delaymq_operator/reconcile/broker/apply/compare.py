"""Comparison of an object with its desired state, ignoring fields of others and the notation of quantities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delaymq_operator.manifests.quantities import same_quantity

_AMOUNTS = frozenset({"requests", "limits", "capacity"})
"""Values below these keys are amounts, which the API server may spell differently."""
_AMOUNT_FIELDS = frozenset({"sizeLimit"})
_LIST_KEYS = ("name", "mountPath", "uid")
"""Keys that identify the elements of a list if all of them have the key."""


def covers(live: object, desired: object, *, amounts: bool = False) -> bool:
    """Return whether `live` contains all of `desired`. None and empty values are contained in everything."""
    if desired is None or desired in ("", {}, []):
        return True
    if isinstance(desired, dict):
        return isinstance(live, dict) and all(
            covers(
                live.get(key),
                value,
                amounts=key in _AMOUNTS if isinstance(value, dict) else amounts or key in _AMOUNT_FIELDS,
            )
            for key, value in desired.items()
        )
    if isinstance(desired, (list, tuple)):
        return isinstance(live, (list, tuple)) and _covers_list(live, desired)
    if isinstance(desired, bool) or isinstance(live, bool):
        return live is desired
    return live == desired or (amounts and same_quantity(live, desired))


def _covers_list(live: Sequence[Any], desired: Sequence[Any]) -> bool:
    for key in _LIST_KEYS:
        if all(isinstance(element, dict) and key in element for element in desired):
            found = {element[key]: element for element in live if isinstance(element, dict) and key in element}
            return all(covers(found.get(element[key]), element) for element in desired)
    return len(live) == len(desired) and all(covers(one, other) for one, other in zip(live, desired, strict=True))
