"""Common parts of the four kinds: metadata, parsing of bodies, status updates, timestamps."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from delaymq_operator.api.errors import SpecError
from delaymq_operator.api.names import DRY_RUN_ANNOTATION


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a resource; unknown fields are ignored, so that a newer CRD does not stop an older operator."""


class NameRef(ApiStruct, frozen=True, kw_only=True):
    """Reference to an object in the same namespace."""

    name: str


class Resource(ApiStruct, frozen=True, kw_only=True):
    """Metadata used by the operator."""

    name: str
    namespace: str
    uid: str = ""
    generation: int = 0
    """Number of changes of the spec; 0 only for a body that does not come from an API server."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    creation_timestamp: str = ""
    """RFC 3339, UTC."""
    deletion_timestamp: str | None = None
    """Set while the resource is being deleted."""

    @property
    def deleting(self) -> bool:
        """Whether its deletion was requested."""
        return self.deletion_timestamp is not None

    @property
    def is_dry_run(self) -> bool:
        """Whether changes of delays are to be shown in the status instead of being applied."""
        return self.annotations.get(DRY_RUN_ANNOTATION) == "true"


class StatusStruct(ApiStruct, frozen=True, kw_only=True):
    """A status, or a part of one."""

    def to_dict(self) -> dict[str, Any]:
        """Return the status as stored by the API server: camelCase, without fields that are None."""
        plain: dict[str, Any] = _without_none(msgspec.to_builtins(self))
        return plain


Part = TypeVar("Part", bound=ApiStruct)


def metadata_of(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Resource` from a body. SpecError if it has no name or namespace."""
    metadata = body.get("metadata") or {}
    for field in ("name", "namespace"):
        if not isinstance(metadata.get(field), str) or not metadata[field]:
            raise SpecError(f"metadata.{field} of the {kind} is missing: add it")
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata.get("uid", ""),
        "generation": metadata.get("generation", 0),
        "labels": dict(metadata.get("labels") or {}),
        "annotations": dict(metadata.get("annotations") or {}),
        "creation_timestamp": metadata.get("creationTimestamp") or "",
        "deletion_timestamp": metadata.get("deletionTimestamp"),
    }


def spec_of(kind: str, body: Mapping[str, Any], into: type[Part]) -> Part:
    """Return the spec of a body. SpecError names the invalid field."""
    try:
        return msgspec.convert(_plain(body.get("spec") or {}), into)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        path = "spec" + where.rstrip("`").replace("[...]", "")
        raise SpecError(f"{path}: {what[:1].lower()}{what[1:]}; correct it in the {kind}") from error


def status_of(body: Mapping[str, Any], into: type[Part]) -> Part:
    """Return the last written status; an empty one if another version of the operator wrote an unreadable one."""
    try:
        return msgspec.convert(_plain(body.get("status") or {}), into)
    except msgspec.ValidationError:
        return into()


def status_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the JSON merge patch of the status subresource between two statuses; None if they are equal.

    Lists are replaced as a whole. A removed field is set to null.
    """
    changes = _changes(before, after)
    return {"status": changes} if changes else None


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes field by field, also in nested objects: a merge patch would keep removed fields otherwise."""
    found: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        known = before.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            if changes := _changes(known, value):
                found[key] = changes
        elif key not in before or known != value:
            found[key] = value
    return found


def timestamp(at: datetime) -> str:
    """Return a time as RFC 3339 in UTC, in whole seconds like a metav1.Time."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp_of_ms(at_ms: int) -> str:
    """Return a timestamp from milliseconds since the epoch."""
    return timestamp(datetime.fromtimestamp(at_ms / 1000, UTC))


def parse_timestamp(text: str) -> datetime:
    """Parse the result of `timestamp`. ValueError if it is invalid."""
    return datetime.fromisoformat(text)


def ms_of_timestamp(text: str | None) -> int | None:
    """Return a timestamp in milliseconds since the epoch; None if it is missing or invalid."""
    try:
        return None if text is None else int(parse_timestamp(text).timestamp() * 1000)
    except ValueError:
        return None


def _plain(value: Any) -> Any:
    """Return a body as dicts and lists, since bodies may be read-only views."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value]
    return value
