"""Implementation of the port `Cache`: the last state observed by watches, lists and the operator's own writes.

Versions determine the order: an older one never replaces a newer one. At equal versions, lists and responses take
precedence over watch events: a watch that started before a CustomResourceDefinition was replaced continues for up to
two minutes, and its objects lack the fields that only the new definition has. `managedFields` are omitted, since they
are unused and make up half of an object.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping

from delaymq_operator.adapters.kinds import OWN_KINDS, WATCHED_KINDS
from delaymq_operator.api.names import MANAGED_BY_LABEL, MANAGED_BY_VALUE
from delaymq_operator.api.topic import claim_of
from delaymq_operator.reconcile.ports import Manifest

Changed = Callable[[str, Manifest | None, Manifest | None], None]
"""Called with the kind, the previous and the new object; None: the object does not exist."""

_Name = tuple[str, str]
_Claim = tuple[str, str, str]
"""Namespace, Broker and topic that a Topic claims."""


class WatchCache:
    """Objects of the watched kinds; other kinds raise LookupError, so that `unknown` is not mistaken for `absent`."""

    def __init__(self, changed: Changed, *, namespaces: tuple[str, ...] = ()) -> None:
        self._changed = changed
        self._namespaces = frozenset(namespaces)
        self._closed: set[str | None] = set()
        self._objects: dict[str, dict[_Name, Manifest]] = {kind: {} for kind in WATCHED_KINDS}
        self._owned: dict[str, dict[str, set[_Name]]] = {kind: defaultdict(set) for kind in WATCHED_KINDS}
        self._claimed: dict[_Claim, set[_Name]] = defaultdict(set)

    # Reads (the port).

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return the object, or None."""
        return self._of(kind).get((namespace, name))

    def owned(self, kind: str, owner_uid: str) -> list[Manifest]:
        """Return objects with an ownerReference to `owner_uid`."""
        objects = self._of(kind)
        return [objects[name] for name in sorted(self._owned[kind].get(owner_uid, ()))]

    def all(self, kind: str, namespace: str | None = None) -> list[Manifest]:
        """Return objects of a kind, in one namespace or in all."""
        return [found for name, found in self._of(kind).items() if namespace is None or name[0] == namespace]

    def labelled(self, kind: str, namespace: str, labels: Mapping[str, str]) -> list[Manifest]:
        """Return objects with all `labels`."""
        return [
            found
            for found in self.all(kind, namespace)
            if labels.items() <= (found["metadata"].get("labels") or {}).items()
        ]

    def conflicting_topics(self, topic: Manifest) -> list[Manifest]:
        """Return other Topics with the same topic of the same Broker.

        Uses an index: scanning thousands of Topics for each of thousands would block the event loop for longer than
        the lease duration.
        """
        topics = self._objects["Topic"]
        return [topics[name] for name in sorted(self._claimed.get(claim_of(topic), ())) if name != _name_of(topic)]

    # Updates.

    def put(self, kind: str, found: Manifest, *, event: bool = False) -> None:
        """Store an object of a version, from an ``event`` of a watch or from a response.

        Older versions and unmanaged objects are ignored. At the same version, a response with different content
        replaces the stored object.
        """
        if kind not in self._objects:
            return
        name = _name_of(found)
        if not (self._is_newer(kind, name, found) if event else self._is_news(kind, name, found)):
            return
        before = self._objects[kind].get(name)
        kept = {key: value for key, value in found.items() if key != "metadata"}
        kept["metadata"] = _metadata(found)
        kept.setdefault("kind", kind)
        self._store(kind, name, before, kept)
        self._changed(kind, before, kept)

    def remove(self, kind: str, gone: Manifest) -> None:
        """Remove an object that a watch reported as deleted, unless it was created again."""
        if kind not in self._objects:
            return
        name = _name_of(gone)
        before = self._objects[kind].get(name)
        if before is not None and before["metadata"].get("uid") == gone["metadata"].get("uid"):
            self._store(kind, name, before, None)
            self._changed(kind, before, None)

    def replace(self, kind: str, namespace: str | None, items: Iterable[Manifest], version: str) -> int:
        """Replace all objects of a kind (in one namespace, or in all) at `version`; return the number of changes."""
        listed = {_name_of(item): item for item in items}
        gone = self._gone(kind, namespace, listed, version)
        for name in gone:
            before = self._objects[kind][name]
            self._store(kind, name, before, None)
            self._changed(kind, before, None)
        news = [item for name, item in listed.items() if self._is_news(kind, name, item)]
        for item in news:
            self.put(kind, item)
        return len(gone) + len(news)

    def differs(self, kind: str, namespace: str | None, items: Iterable[Manifest], version: str) -> bool:
        """Return whether `replace` would change anything."""
        listed = {_name_of(item): item for item in items}
        if self._gone(kind, namespace, listed, version):
            return True
        return any(self._is_news(kind, name, item) for name, item in listed.items())

    def _gone(self, kind: str, namespace: str | None, listed: Container[_Name], version: str) -> list[_Name]:
        """Return objects that are older than the list and missing from it."""
        return [
            name
            for name, known in self._objects[kind].items()
            if (namespace is None or name[0] == namespace)
            and name not in listed
            and _version_of(known) <= _version(version)
        ]

    def _is_newer(self, kind: str, name: _Name, item: Manifest) -> bool:
        known = self._objects[kind].get(name)
        return self._concerns(kind, item) and (known is None or _version_of(item) > _version_of(known))

    def _is_news(self, kind: str, name: _Name, item: Manifest) -> bool:
        """Return whether a response is newer, or differs at the same version."""
        if self._is_newer(kind, name, item):
            return True
        known = self._objects[kind].get(name)
        return known is not None and _version_of(item) == _version_of(known) and _content(item) != _content(known)

    def open(self, namespace: str | None) -> None:
        """Accept objects of a namespace (None: of all) again."""
        self._closed.discard(namespace)

    def close(self, namespace: str | None) -> None:
        """Drop all objects of a namespace (None: of all), and accept none until `open`: its state is unknown."""
        self._closed.add(namespace)
        for kind, objects in self._objects.items():
            for name in [name for name in objects if namespace in (None, name[0])]:
                before = objects[name]
                self._store(kind, name, before, None)
                self._changed(kind, before, None)

    def counts(self, namespace: str | None = None) -> dict[str, int]:
        """Return the number of objects by kind, in one namespace or in all."""
        if namespace is None:
            return {kind: len(objects) for kind, objects in self._objects.items()}
        return {kind: sum(name[0] == namespace for name in objects) for kind, objects in self._objects.items()}

    def _of(self, kind: str) -> dict[_Name, Manifest]:
        objects = self._objects.get(kind)
        if objects is None:
            raise LookupError(f"{kind} objects are not watched: query the API server (kube.get)")
        return objects

    def _concerns(self, kind: str, found: Manifest) -> bool:
        metadata = found["metadata"]
        namespace = metadata.get("namespace")
        if (self._namespaces and namespace not in self._namespaces) or not self._closed.isdisjoint((None, namespace)):
            return False
        return kind in OWN_KINDS or (metadata.get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGED_BY_VALUE

    def _store(self, kind: str, name: _Name, before: Manifest | None, after: Manifest | None) -> None:
        owned = self._owned[kind]
        for uid in _owners(before):
            owned[uid].discard(name)
            if not owned[uid]:
                del owned[uid]
        for uid in _owners(after):
            owned[uid].add(name)
        if kind == "Topic":
            self._enter_claim(name, before, after)
        if after is None:
            self._objects[kind].pop(name, None)
        else:
            self._objects[kind][name] = after

    def _enter_claim(self, name: _Name, before: Manifest | None, after: Manifest | None) -> None:
        if before is not None:
            claim = claim_of(before)
            self._claimed[claim].discard(name)
            if not self._claimed[claim]:
                del self._claimed[claim]
        if after is not None:
            self._claimed[claim_of(after)].add(name)


def _name_of(found: Manifest) -> _Name:
    return found["metadata"].get("namespace") or "", found["metadata"]["name"]


def _owners(found: Manifest | None) -> list[str]:
    return [] if found is None else [owner["uid"] for owner in found["metadata"].get("ownerReferences") or []]


def _content(found: Manifest) -> dict[str, object]:
    """Return the content common to lists, events and responses: lists omit the kind of an item."""
    content = {key: value for key, value in found.items() if key not in ("apiVersion", "kind", "metadata")}
    content["metadata"] = _metadata(found)
    return content


def _metadata(found: Manifest) -> dict[str, object]:
    return {key: value for key, value in found["metadata"].items() if key != "managedFields"}


def _version_of(found: Manifest) -> int:
    return _version(found["metadata"].get("resourceVersion"))


def _version(text: str | None) -> int:
    """Return the version as a number; it increases across all objects of a kind (guaranteed since Kubernetes 1.35)."""
    return int(text) if text and text.isdigit() else 0
