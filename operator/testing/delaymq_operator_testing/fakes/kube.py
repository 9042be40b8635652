"""In-memory API server for the reconciliation of Brokers.

It implements the necessary parts of server-side apply, StatefulSets, claims and garbage collection. In each `tick`, the
controllers and kubelets take one step. It is fast enough for hundreds of simulated histories per second; api_server.py
runs the real server.
"""

from __future__ import annotations

import builtins
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from delaymq_operator.api.topic import claim_of
from delaymq_operator.manifests import parse_quantity
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

from delaymq_operator_testing.fakes.endpoints import run_endpoints
from delaymq_operator_testing.trees import copied

Place = tuple[str, str, str]
BAD_IMAGES = frozenset({"bad:image"})
COMPONENT = "app.kubernetes.io/component"
TICKS_TO_RUN = 1
TICKS_TO_READY = 2


@dataclass
class FakeKube:
    """Implementation of the port Kube. `requests` contains every call, including reads, as (verb, kind, name)."""

    clock: Callable[[], int]
    objects: dict[Place, Manifest] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    can_grow: bool = True
    missing_classes: set[str | None] = field(default_factory=set)
    """Storage classes that do not exist: their claims stay unbound. None means that there is no default class."""
    largest: str = ""
    """Maximum size of volumes, whatever their claims request; empty means unlimited."""
    unusable: set[str] = field(default_factory=set)
    """Claims, by uid, whose volume no node can use: their pods are not scheduled."""
    unready: set[str] = field(default_factory=set)
    """Pods that run but are not ready."""
    is_ready: Callable[[str], bool] = lambda pod: True
    """Whether the readiness probe of a running pod succeeds."""
    owned_fields: dict[Place, Manifest] = field(default_factory=dict)
    """Last applied manifests: a field that the next one omits is removed."""
    started: list[str] = field(default_factory=list)
    """Pods in the order in which they started."""
    made: list[Place] = field(default_factory=list)
    """Objects made by `create`."""
    unknown: set[str] = field(default_factory=set)
    """Kinds whose CRD is not installed."""
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    """Operations that access rules do not allow, as (verb, kind)."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _ages: dict[str, int] = field(default_factory=dict)

    # Methods of the port.

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        self.requests.append(("get", kind, name))
        self._allow("get", kind)
        return copied(self.objects.get((kind, namespace, name)))

    async def list(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> list[Manifest]:
        self.requests.append(("list", kind, ""))
        self._allow("list", kind)
        if kind in self.unknown:
            raise KubeError(404, "", f"GET {kind}: HTTP status 404 404 page not found")
        found = self.select(kind, namespace, labels or {})
        wanted = (fields or {}).items()
        return copied([body for body in found if all(_field(body, path) == value for path, value in wanted)])

    async def apply(self, manifest: Manifest) -> Manifest:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        place = (kind, manifest["metadata"]["namespace"], name)
        self.requests.append(("apply", kind, name))
        live = self.objects.get(place)
        body = copied(live) if live is not None else {"kind": kind, "metadata": {}}
        _remove_owned(body, self.owned_fields.get(place, {}), manifest)
        _merge(body, copied(manifest))
        self._admit(kind, body, live)
        self.owned_fields[place] = copied(manifest)
        return copied(self._store(place, body))

    async def create(self, manifest: Manifest) -> Manifest:
        kind, metadata = manifest["kind"], manifest["metadata"]
        place = (kind, metadata["namespace"], metadata["name"])
        self.requests.append(("create", kind, metadata["name"]))
        self._allow("create", kind)
        if kind in self.unknown:
            raise KubeError(404, "", f"POST {kind}: HTTP status 404 404 page not found")
        if place in self.objects:
            raise KubeError(409, "AlreadyExists", f"{kind} {metadata['name']} already exists")
        self.made.append(place)
        return copied(self._store(place, copied(manifest)))

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Manifest, *, subresource: str | None = None
    ) -> Manifest:
        self.requests.append(("patch" if subresource is None else f"patch {subresource}", kind, name))
        place = (kind, namespace, name)
        if place not in self.objects:
            raise KubeError(404, "NotFound", f"{kind} {name} not found")
        before = self.objects[place]
        version = (patch.get("metadata") or {}).get("resourceVersion")
        if version is not None and version != before["metadata"]["resourceVersion"]:
            raise KubeError(409, "Conflict", f"the object {kind} {name} has been modified")
        body = _merge_patch(copied(before), patch)
        if kind == "PersistentVolumeClaim" and subresource is None and body["spec"] != before["spec"]:
            self._admit_size(body, before)
        return copied(self._store(place, body))

    async def delete(
        self,
        kind: str,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: str = "Background",
    ) -> None:
        self.requests.append(("delete", kind, name))
        place = (kind, namespace, name)
        live = self.objects.get(place)
        if live is None:
            return
        if uid is not None and live["metadata"]["uid"] != uid:
            raise KubeError(409, "Conflict", f"the uid of {kind} {name} is another")
        if version is not None and live["metadata"]["resourceVersion"] != version:
            raise KubeError(409, "Conflict", f"the ResourceVersion of {kind} {name} is another")
        if kind == "Pod" or propagation == "Orphan":
            if "deletionTimestamp" not in live["metadata"]:
                live["metadata"]["deletionTimestamp"] = self._now_text()
                live["metadata"]["finalizers"] = ["orphan"] if propagation == "Orphan" else []
                self._touch(live)
            return
        del self.objects[place]
        self.owned_fields.pop(place, None)

    async def event(self, about: Manifest, *, type: str, reason: str, message: str) -> None:  # noqa: A002
        self.requests.append(("event", "Event", reason))
        self.events.append((type, reason, message))

    # Actions of tests.

    def put(self, body: Manifest) -> Manifest:
        """Create or replace an object as another client would; a changed spec increments the generation."""
        metadata = body["metadata"]
        return self._store((body["kind"], metadata["namespace"], metadata["name"]), copied(body))

    def remove(self, kind: str, namespace: str, name: str) -> None:
        self.objects.pop((kind, namespace, name))
        self.owned_fields.pop((kind, namespace, name), None)

    def select(self, kind: str, namespace: str | None, labels: Mapping[str, str]) -> Iterator[Manifest]:
        for (each, where, _), body in sorted(self.objects.items()):
            carried = body["metadata"].get("labels") or {}
            if each == kind and namespace in (None, where) and labels.items() <= carried.items():
                yield body

    def writes(self) -> builtins.list[tuple[str, str, str]]:
        """Return the requests other than reads."""
        return [request for request in self.requests if request[0] not in ("get", "list")]

    # Controllers and kubelets.

    def tick(self) -> None:
        """Run every controller and kubelet once."""
        self._collect_garbage()
        run_endpoints(self)
        for body in list(self.select("StatefulSet", None, {})):
            if "deletionTimestamp" not in body["metadata"]:
                self._run_stateful_set(body)
        for body in list(self.select("Pod", None, {})):
            if "deletionTimestamp" in body["metadata"] or body["metadata"]["labels"].get(COMPONENT) != "analytics":
                self._run_pod(body)
        for claim in list(self.select("PersistentVolumeClaim", None, {})):
            wanted = {"storage": claim["spec"]["resources"]["requests"]["storage"]}
            if self.stays_as_it_is(claim, wanted["storage"]):
                continue
            if (claim.get("status") or {}).get("capacity") != wanted:
                claim["status"] = {"phase": "Bound", "capacity": wanted}
                self._touch(claim)

    def stays_as_it_is(self, claim: Manifest, wanted: str) -> bool:
        """Return whether the storage ignores a claim: its class is missing, or it requests more than `largest`."""
        status = claim.get("status") or {}
        if "capacity" not in status:
            return claim["spec"].get("storageClassName") in self.missing_classes
        return bool(self.largest) and parse_quantity(wanted) > parse_quantity(self.largest)

    def _collect_garbage(self) -> None:
        for place, body in list(self.objects.items()):
            if body["metadata"].get("finalizers") == ["orphan"]:
                for other in self.objects.values():
                    _drop_owner(other, body["metadata"]["uid"])
                del self.objects[place]
                self.owned_fields.pop(place, None)
        uids = {body["metadata"]["uid"] for body in self.objects.values()}
        for place, body in list(self.objects.items()):
            owners = body["metadata"].get("ownerReferences") or []
            if owners and not any(owner["uid"] in uids for owner in owners):
                if place[0] == "Pod":
                    body["metadata"].setdefault("deletionTimestamp", self._now_text())
                    body["metadata"]["finalizers"] = []
                else:
                    del self.objects[place]

    def _run_stateful_set(self, body: Manifest) -> None:
        spec, metadata = body["spec"], body["metadata"]
        revision = f"{metadata['name']}-{_digest(spec['template'])}"
        status = {"observedGeneration": metadata["generation"], "updateRevision": revision}
        if body.get("status") != status:
            body["status"] = status
            self._touch(body)
        owner = {"kind": "StatefulSet", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
        for ordinal in range(spec["replicas"]):
            self._have_claims(body, ordinal, owner)
            place = ("Pod", metadata["namespace"], f"{metadata['name']}-{ordinal}")
            pod = self.objects.get(place)
            if pod is None:
                template = copied(spec["template"])
                template["metadata"]["labels"]["controller-revision-hash"] = revision
                self._store(
                    place,
                    {
                        "kind": "Pod",
                        "metadata": template["metadata"]
                        | {"name": place[2], "namespace": place[1], "ownerReferences": [owner]},
                        "spec": template["spec"],
                        "status": {"phase": "Pending"},
                    },
                )
            elif not pod["metadata"].get("ownerReferences"):
                pod["metadata"]["ownerReferences"] = [owner]
                self._touch(pod)
        for pod in list(self.select("Pod", metadata["namespace"], {})):
            name, _, ordinal_text = pod["metadata"]["name"].rpartition("-")
            if name == metadata["name"] and int(ordinal_text) >= spec["replicas"]:
                pod["metadata"].setdefault("deletionTimestamp", self._now_text())

    def _have_claims(self, body: Manifest, ordinal: int, owner: Manifest) -> None:
        metadata = body["metadata"]
        for claim in body["spec"].get("volumeClaimTemplates") or []:
            name = f"{claim['metadata']['name']}-{metadata['name']}-{ordinal}"
            place = ("PersistentVolumeClaim", metadata["namespace"], name)
            if place not in self.objects:
                made = copied(claim)
                made["kind"] = "PersistentVolumeClaim"
                made["metadata"] |= {"name": name, "namespace": metadata["namespace"]}
                self._store(place, made)
            kept = body["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"
            self.objects[place]["metadata"]["ownerReferences"] = [] if kept else [owner]

    def _run_pod(self, body: Manifest) -> None:
        metadata, place = body["metadata"], ("Pod", body["metadata"]["namespace"], body["metadata"]["name"])
        uid = metadata["uid"]
        if "deletionTimestamp" in metadata:
            if metadata.get("finalizers") == []:
                del self.objects[place]
            metadata["finalizers"] = []
            return
        age = self._ages[uid] = self._ages.get(uid, 0) + 1
        image = body["spec"]["containers"][0]["image"]
        before = copied(body.get("status"))
        if image in BAD_IMAGES:
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
            state = {"name": body["spec"]["containers"][0]["name"], "state": {"waiting": waiting}}
            body["status"] = {"phase": "Pending", "containerStatuses": [state]}
        elif not self.has_volume(metadata):
            message = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims"
            scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            body["status"] = {"phase": "Pending", "conditions": [scheduled]}
            self._ages[uid] = 0
        elif age > TICKS_TO_RUN:
            if before is None or before.get("phase") != "Running":
                self.started.append(metadata["name"])
            ready = age > TICKS_TO_READY and metadata["name"] not in self.unready
            ready = ready and self.is_ready(metadata["name"])
            address = (before or {}).get("podIP") or f"10.1.0.{next(self._numbers)}"
            condition = {
                "type": "Ready",
                "status": "True" if ready else "False",
                "lastTransitionTime": self._now_text(),
            }
            (earlier,) = (before or {}).get("conditions") or [{}]
            if (earlier.get("type"), earlier.get("status")) == ("Ready", condition["status"]):
                condition = earlier
            body["status"] = {"phase": "Running", "podIP": address, "conditions": [condition]}
            body["spec"]["nodeName"] = "node-1"
        if body.get("status") != before:
            self._touch(body)

    def has_volume(self, pod: Manifest) -> bool:
        """Return whether the claim of a pod is bound or not needed."""
        claim = self.objects.get(("PersistentVolumeClaim", pod["namespace"], f"store-{pod['name']}"))
        if claim is None:
            return pod["labels"].get(COMPONENT) != "broker"
        if claim["metadata"]["uid"] in self.unusable:
            return False
        return "capacity" in (claim.get("status") or {})

    # Storage.

    def _store(self, place: Place, body: Manifest) -> Manifest:
        live = self.objects.get(place)
        metadata = body["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._numbers)}")
        metadata.setdefault("creationTimestamp", self._now_text())
        if live is None:
            metadata["generation"] = metadata.get("generation", 1)
        elif _without_moving(live) == _without_moving(body):
            return live
        elif live.get("spec") != body.get("spec"):
            metadata["generation"] = live["metadata"].get("generation", 1) + 1
        self.objects[place] = body
        self._touch(body)
        return body

    def _allow(self, verb: str, kind: str) -> None:
        if (verb, kind) in self.forbidden:
            raise KubeError(403, "Forbidden", f"cannot {verb} resource {kind} in API group sparkoperator.k8s.io")

    def _touch(self, body: Manifest) -> None:
        body["metadata"]["resourceVersion"] = str(next(self._numbers))

    def _now_text(self) -> str:
        return datetime.fromtimestamp(self.clock() / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _admit(self, kind: str, body: Manifest, live: Manifest | None) -> None:
        if kind == "StatefulSet" and live is not None:
            for key in ("selector", "serviceName", "volumeClaimTemplates"):
                if body["spec"].get(key) != live["spec"].get(key):
                    raise KubeError(422, "Invalid", f"spec: Forbidden: updates to {key} are forbidden")
        if kind == "Service":
            self._admit_service(body)

    def _admit_size(self, body: Manifest, before: Manifest) -> None:
        """Validate a changed size like Kubernetes 1.34: bound claims only, no reduction to the capacity or below."""
        has = ((before.get("status") or {}).get("capacity") or {}).get("storage")
        if has is None:
            raise KubeError(
                422, "Invalid", "spec is immutable after creation except resources.requests for bound claims"
            )
        if storage_of(body) < storage_of(before):
            if storage_of(body) <= parse_quantity(has):
                raise KubeError(422, "Invalid", "field can not be less than status.capacity")
        elif not self.can_grow:
            raise KubeError(403, "Forbidden", "only dynamically provisioned pvc can be resized")

    def _admit_service(self, body: Manifest) -> None:
        name, spec = body["metadata"]["name"], body["spec"]
        others = [other for other in self.select("Service", None, {}) if other["metadata"]["name"] != name]
        address = spec.get("clusterIP")
        if address is None:
            spec["clusterIP"] = f"10.96.0.{next(self._numbers)}"
        elif address != "None" and any(other["spec"].get("clusterIP") == address for other in others):
            raise KubeError(
                422, "Invalid", f"spec.clusterIPs: failed to allocate IP {address}: provided IP is already allocated"
            )
        taken = {port.get("nodePort") for other in others for port in other["spec"]["ports"]} - {None}
        for port in spec["ports"]:
            if port.get("nodePort") in taken:
                raise KubeError(422, "Invalid", f"spec.ports: {port['nodePort']}: provided port is already allocated")


class FakeCache:
    """Implementation of the port Cache: the state at the last `sync`.

    Objects of other kinds are visible only if they have the operator's label, as in the real cache.
    """

    OWN = ("Broker", "Topic", "DelayLevelConfig", "User")

    def __init__(self, kube: FakeKube) -> None:
        self._kube = kube
        self._seen: dict[Place, Manifest] = {}

    def sync(self) -> bool:
        """Copy the current state; return whether it has changed."""
        before = self._seen
        self._seen = {
            place: before[place] if before.get(place) == body else copied(body)
            for place, body in self._kube.objects.items()
            if place[0] in self.OWN or (body["metadata"].get("labels") or {}).get("app.kubernetes.io/managed-by")
            if place[0] != "Secret"
        }
        return before != self._seen

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self._seen.get((kind, namespace, name))

    def owned(self, kind: str, owner_uid: str) -> list[Manifest]:
        return [
            body
            for place, body in sorted(self._seen.items())
            if place[0] == kind
            and any(owner["uid"] == owner_uid for owner in body["metadata"].get("ownerReferences") or [])
        ]

    def all(self, kind: str, namespace: str | None = None) -> list[Manifest]:
        return self.labelled(kind, namespace, {})

    def conflicting_topics(self, topic: Manifest) -> list[Manifest]:
        others = self.all("Topic", topic["metadata"]["namespace"])
        return [
            other
            for other in others
            if claim_of(other) == claim_of(topic) and other["metadata"]["name"] != topic["metadata"]["name"]
        ]

    def labelled(self, kind: str, namespace: str | None, labels: Mapping[str, str]) -> list[Manifest]:
        return [
            body
            for place, body in sorted(self._seen.items())
            if place[0] == kind
            and namespace in (None, place[1])
            and labels.items() <= (body["metadata"].get("labels") or {}).items()
        ]


def storage_of(claim: Manifest) -> int:
    """Return the size that a claim requests, in bytes."""
    return int(parse_quantity(claim["spec"]["resources"]["requests"]["storage"]))


def _field(body: Manifest, path: str) -> object:
    value: Any = body
    for word in path.split("."):
        value = (value or {}).get(word)
    return value


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def _without_moving(body: Manifest) -> Manifest:
    moving = ("resourceVersion", "generation")
    return body | {"metadata": {key: value for key, value in body["metadata"].items() if key not in moving}}


def _drop_owner(body: Manifest, uid: str) -> None:
    owners = body["metadata"].get("ownerReferences") or []
    body["metadata"]["ownerReferences"] = [owner for owner in owners if owner["uid"] != uid]


def _merge(into: Manifest, new: Manifest) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _remove_owned(body: Manifest, owned: Manifest, wanted: Manifest) -> None:
    for key, value in owned.items():
        if key not in wanted:
            body.pop(key, None)
        elif isinstance(value, dict) and isinstance(body.get(key), dict) and isinstance(wanted[key], dict):
            _remove_owned(body[key], value, wanted[key])


def _merge_patch(body: Manifest, patch: Mapping[str, Any]) -> Manifest:
    for key, value in patch.items():
        if value is None:
            body.pop(key, None)
        elif isinstance(value, Mapping):
            body[key] = _merge_patch(dict(body.get(key) or {}), value)
        else:
            body[key] = copied(value)
    return body
