"""Implementation of the port `Kube`: objects of the API server as plain dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from delaymq_operator.adapters.api_requests import MERGE_PATCH, ApiRequests, Request
from delaymq_operator.adapters.kinds import KINDS, Kind
from delaymq_operator.adapters.kube_events import EventRecorder
from delaymq_operator.api.names import FIELD_MANAGER
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import NO_LABELS, EventType, Manifest, Propagation

PAGE_OBJECTS: Final = 100
"""Number of objects per page of a list. Decoding blocks the interpreter: a page of large pods (1 MB) takes about 10
ms.
"""
MAX_PAGES: Final = 1_000
APPLY_PATCH: Final = "application/apply-patch+yaml"

Seen = Callable[[str, Manifest], None]
"""Called for every object in a response, by kind: the cache receives the operator's own writes before the watch
reports them.
"""


class ApiKube:
    """Kube over the API. `events` can be None in tests that emit no Events."""

    def __init__(self, requests: ApiRequests, *, seen: Seen, events: EventRecorder | None = None) -> None:
        self._requests = requests
        self._seen = seen
        self._events = events

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return the current object, or None."""
        path = _kind(kind).path(namespace, name)
        try:
            found = await self._requests.send(Request("get", kind, "GET", path))
        except KubeError as error:
            if error.absent:
                return None
            raise
        return self._saw(kind, found)

    async def list(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] = NO_LABELS,
        fields: Mapping[str, str] = NO_LABELS,
    ) -> list[Manifest]:
        """Return the current objects, in one namespace or in all, with all `labels` and all `fields`."""
        selector, chosen = (",".join(f"{key}={value}" for key, value in each.items()) for each in (labels, fields))
        items, _ = await list_all(self._requests, kind, namespace, selector=selector, fields=chosen)
        for item in items:
            self._saw(kind, item)
        return items

    async def apply(self, manifest: Manifest) -> Manifest:
        """Apply server-side, by force, under the operator's field manager; return the resulting object."""
        kind, metadata = manifest["kind"], manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        path = _kind(kind).path(metadata.get("namespace"), metadata["name"], query=query)
        request = Request("patch", kind, "PATCH", path, _body(manifest), APPLY_PATCH)
        return self._saw(kind, await self._requests.send(request))

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object and return it. KubeError 409 if the name exists, 404 if the API does not have its kind."""
        kind, namespace = manifest["kind"], manifest["metadata"].get("namespace")
        path = _kind(kind).path(namespace, query={"fieldManager": FIELD_MANAGER})
        return self._saw(kind, await self._requests.send(Request("create", kind, "POST", path, _body(manifest))))

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Manifest, *, subresource: str | None = None
    ) -> Manifest:
        """Apply a JSON merge patch. KubeError 404 if the object is absent, 409 if `patch` contains an outdated
        resourceVersion.
        """
        path = _kind(kind).path(namespace, name, subresource or "", {"fieldManager": FIELD_MANAGER})
        request = Request("patch", kind, "PATCH", path, patch, MERGE_PATCH)
        return self._saw(kind, await self._requests.send(request))

    async def delete(
        self,
        kind: str,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: Propagation = "Background",
    ) -> None:
        """Delete an object; an absent one is not an error. KubeError 409 if its `uid` or resourceVersion differs."""
        options: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        known = {"uid": uid, "resourceVersion": version}
        if conditions := {key: value for key, value in known.items() if value is not None}:
            options["preconditions"] = conditions
        try:
            await self._requests.send(Request("delete", kind, "DELETE", _kind(kind).path(namespace, name), options))
        except KubeError as error:
            if not error.absent:
                raise

    async def event(self, about: Manifest, *, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        """Emit an Event about an object; repeated Events are counted, not added. It never raises and never blocks."""
        if self._events is not None:
            self._events.event(about, type=type, reason=reason, message=message)

    def _saw(self, kind: str, found: Any) -> Manifest:
        if not isinstance(found, dict):
            raise KubeError(0, "BadAnswer", f"the API server's response for a {kind} is not an object")
        self._seen(kind, found)
        return found


async def list_all(
    requests: ApiRequests, kind: str, namespace: str | None, *, selector: str = "", fields: str = ""
) -> tuple[list[Manifest], str]:
    """Return all objects of a kind, read in pages, and their resource version."""
    items: list[Manifest] = []
    query = {"limit": str(PAGE_OBJECTS)}
    if selector:
        query["labelSelector"] = selector
    if fields:
        query["fieldSelector"] = fields
    described = _kind(kind)
    for _ in range(MAX_PAGES):
        # One at a time: pages that are decoded by several threads keep the loop waiting for the sum of them.
        async with requests.listing:
            page = await requests.send(Request("list", kind, "GET", described.path(namespace, query=query)))
        if not isinstance(page, dict):
            raise KubeError(0, "BadAnswer", f"the API server's list of {described.plural} is not an object")
        for item in page.get("items") or []:
            # Lists omit the fields that are the same for all items.
            item.setdefault("kind", kind)
            item.setdefault("apiVersion", described.api_version)
            items.append(item)
        metadata = page.get("metadata") or {}
        following = metadata.get("continue")
        if not following:
            return items, str(metadata.get("resourceVersion") or "")
        query["continue"] = following
    raise KubeError(
        0,
        "TooMany",
        f"there are more {described.plural} than the operator reads (limit: {MAX_PAGES * PAGE_OBJECTS})",
    )


def _body(manifest: Manifest) -> Manifest:
    """Return the object with the kind of the API."""
    kind = manifest["kind"]
    return manifest | {"kind": _kind(kind).written_as or kind}


def _kind(name: str) -> Kind:
    kind = KINDS.get(name)
    if kind is None:
        raise ValueError(f"kind {name} is not defined in adapters/kinds.py")
    return kind
