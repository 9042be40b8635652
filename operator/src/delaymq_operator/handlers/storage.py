"""Tolerant reading of kopf's annotations, since everyone who may edit an object can write invalid ones.

kopf reads them before it reports an object's event. An error there would hide all events of the object from the
cache, and enough of those look like a dead watch.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import kopf

_TIMES: Final = ("started", "stopped", "delayed")
_FLAGS: Final = ("success", "failure")
_MAX_DEPTH: Final = 50
"""Maximum nesting depth: kopf copies the notes recursively, and specs are never this deep."""


class CarefulDiffBaseStorage(kopf.AnnotationsDiffBaseStorage):
    """Treats an unreadable annotation as absent, and writes it again."""

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Return the object as last handled."""
        try:
            found = super().fetch(body=body)
        except (ValueError, RecursionError):
            return None
        return found if _is_essence(found) else None


class CarefulProgressStorage(kopf.AnnotationsProgressStorage):
    """Treats unreadable progress as not started."""

    def fetch(self, *, key: Any, body: kopf.Body) -> Any:
        """Return the progress of a handler with the object."""
        try:
            found = super().fetch(key=key, body=body)
        except (ValueError, RecursionError):
            return None
        return found if _is_progress(found) else None


def _is_essence(found: object) -> bool:
    if not isinstance(found, Mapping) or _is_deeper(found, _MAX_DEPTH):
        return False
    metadata = found.get("metadata", {})
    return isinstance(metadata, Mapping) and all(
        isinstance(metadata.get(part, {}), Mapping) for part in ("labels", "annotations")
    )


def _is_deeper(found: object, most: int) -> bool:
    parts = found.values() if isinstance(found, Mapping) else found if isinstance(found, list) else ()
    return most == 0 or any(_is_deeper(part, most - 1) for part in parts)


def _is_progress(found: object) -> bool:
    if not isinstance(found, Mapping):
        return False
    retries, subrefs = found.get("retries"), found.get("subrefs")
    return (
        all(found.get(time) is None or _is_time(found[time]) for time in _TIMES)
        and all(found.get(flag) in (None, True, False) for flag in _FLAGS)
        and (retries is None or (isinstance(retries, int) and retries >= 0))
        and (subrefs is None or isinstance(subrefs, list))
        and isinstance(found.get("purpose") or "", str)
    )


def _is_time(found: object) -> bool:
    try:
        time = datetime.fromisoformat(str(found))
    except ValueError:
        return False
    # A time without a zone cannot be compared with kopf's.
    return time.tzinfo is not None and time.isoformat(timespec="microseconds") == found
