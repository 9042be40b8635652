"""The record in a Lease object: an annotation with the record, and fields of the Lease that show it to people."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Final

import msgspec

from delaymq.replication import Record
from delaymq.server.registers.record_text import RecordError, decode, encode

ANNOTATION: Final = "delaymq.io/register"
_TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%S.%fZ"
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class LeaseError(ValueError):
    """An object is no Lease that holds a record; the text says why."""


class _Metadata(msgspec.Struct, rename="camel"):
    name: _Text
    namespace: _Text
    uid: _Text
    resource_version: _Text
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None


class _Lease(msgspec.Struct):
    kind: str
    metadata: _Metadata
    spec: _Spec | None = None


class LeaseObject:
    """A Lease as the API server returned it, checked."""

    def __init__(self, content: object, namespace: str, name: str) -> None:
        """`content` is decoded JSON. Raises LeaseError."""
        try:
            lease = msgspec.convert(content, _Lease)
        except msgspec.ValidationError as error:
            raise LeaseError(f"the response is no Lease: {error}") from error
        meta = lease.metadata
        if (lease.kind, meta.namespace, meta.name) != ("Lease", namespace, name):
            raise LeaseError(f"the response is the {lease.kind[:100]} {meta.namespace}/{meta.name}")
        self._meta = meta
        self._spec = lease.spec or _Spec()
        self.uid = meta.uid
        self.version = f"{meta.uid}/{meta.resource_version}"
        """A Lease that was deleted and created again has another uid."""
        self.record = self._record((meta.annotations or {}).get(ANNOTATION))

    def patch(self, record: Record, *, lease_s: int, now: datetime.datetime) -> dict[str, Any]:
        """Return a JSON merge patch that replaces the record of exactly this object, and keeps what others wrote.

        It changes the object even if the record is equal. Raises RecordError.
        """
        time = now.strftime(_TIME_FORMAT)
        if time == self._spec.renew_time:
            # An unchanged object would keep its resourceVersion.
            time = (now + datetime.timedelta(microseconds=1)).strftime(_TIME_FORMAT)
        spec: dict[str, Any] = {
            "holderIdentity": record.master or None,  # an empty one is invalid; null removes it
            "leaseTransitions": record.epoch,
            "leaseDurationSeconds": lease_s,
            "renewTime": time,
        }
        if self.record is None or self.record.epoch != record.epoch:
            spec["acquireTime"] = time
        meta = {
            "uid": self._meta.uid,
            "resourceVersion": self._meta.resource_version,
            "annotations": {ANNOTATION: encode(record)},
        }
        return {"metadata": meta, "spec": spec}

    def _record(self, text: str | None) -> Record | None:
        holder, transitions = self._spec.holder_identity or "", self._spec.lease_transitions or 0
        if text is None:
            if holder or transitions:
                raise LeaseError(
                    f"spec.holderIdentity is {holder[:100]!r} and spec.leaseTransitions is {transitions}, but the"
                    f" annotation {ANNOTATION} is missing: another program uses or changed the Lease"
                )
            return None
        try:
            record = decode(text)
        except RecordError as error:
            raise LeaseError(f"the annotation {ANNOTATION} is invalid: {error}") from error
        if (holder, transitions) != (record.master, record.epoch):
            raise LeaseError(
                f"spec.holderIdentity is {holder[:100]!r} and spec.leaseTransitions is {transitions}, but the"
                f" annotation {ANNOTATION} states {record.master!r} and {record.epoch}: set both fields to these values"
            )
        return record
