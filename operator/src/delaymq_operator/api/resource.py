"""What the three kinds share: metadata, parsing a body, writing a status, timestamps."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from delaymq_operator.api.errors import SpecError


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a resource; unknown fields are ignored, so that a newer CRD does not stop an older operator."""


class NameRef(ApiStruct, frozen=True, kw_only=True):
    """Names another object in the same namespace."""

    name: str


class Resource(ApiStruct, frozen=True, kw_only=True):
    """The metadata that the operator looks at."""

    name: str
    namespace: str
    uid: str = ""
    generation: int = 0
    """Counts changes of the spec; 0 only for a body that no API server has seen."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    creation_timestamp: str = ""
    """RFC 3339, UTC."""
    deletion_timestamp: str | None = None
    """Set while the resource is being deleted."""

    @property
    def deleting(self) -> bool:
        """Whether somebody asked for its deletion."""
        return self.deletion_timestamp is not None


class StatusStruct(ApiStruct, frozen=True, kw_only=True):
    """A status, or a part of one."""

    def to_dict(self) -> dict[str, Any]:
        """As the API server keeps it: camelCase, without the fields that are None."""
        plain: dict[str, Any] = _without_none(msgspec.to_builtins(self))
        return plain


Part = TypeVar("Part", bound=ApiStruct)


def metadata_of(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Resource` from a body; SpecError when it has no name or namespace."""
    metadata = body.get("metadata") or {}
    for field in ("name", "namespace"):
        if not isinstance(metadata.get(field), str) or not metadata[field]:
            raise SpecError(f"{kind}: metadata.{field} is missing: add it.")
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
    """The spec of a body; SpecError names the field that cannot be used."""
    try:
        return msgspec.convert(_plain(body.get("spec") or {}), into)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        path = "spec" + where.rstrip("`").replace("[...]", "")
        raise SpecError(f"{path}: {what[:1].lower()}{what[1:]}. Correct it in the {kind}.") from error


def status_of(body: Mapping[str, Any], into: type[Part]) -> Part:
    """The status as last written; an empty one when another version of the operator wrote what cannot be read."""
    try:
        return msgspec.convert(_plain(body.get("status") or {}), into)
    except msgspec.ValidationError:
        return into()


def status_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON merge patch of the status subresource from one status to the next; None when they are equal.

    Lists are replaced as a whole. A field that went away is taken back with null.
    """
    changes = _changes(before, after)
    return {"status": changes} if changes else None


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Field by field in objects within objects too: a merge patch would leave there what went away."""
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
    """RFC 3339 in UTC, whole seconds, as metav1.Time has it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp_of_ms(at_ms: int) -> str:
    """The same from milliseconds since the epoch."""
    return timestamp(datetime.fromtimestamp(at_ms / 1000, UTC))


def parse_timestamp(text: str) -> datetime:
    """The time that `timestamp` wrote; ValueError when it is none."""
    return datetime.fromisoformat(text)


def ms_of_timestamp(text: str | None) -> int | None:
    """The same in milliseconds since the epoch; None when there is no time, or none that can be read."""
    try:
        return None if text is None else int(parse_timestamp(text).timestamp() * 1000)
    except ValueError:
        return None


def _plain(value: Any) -> Any:
    """The same as dicts and lists: bodies may come as read-only views."""
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
