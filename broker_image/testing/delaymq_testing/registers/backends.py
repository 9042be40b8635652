"""State of a fake etcd and a fake API server, with the history of the register as the truth for tests."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

from delaymq.replication import Record
from delaymq.server.registers.endpoint_slices import EPOCH_ANNOTATION
from delaymq.server.registers.lease_object import ANNOTATION
from delaymq.server.registers.record_text import decode

from delaymq_testing.registers.faulty_http import Answer, Request

NAMESPACE = "orders"
LEASE = "orders-0-register"
SLICE = "orders-broker-0-master"
SLICE_PATH = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/{SLICE}"
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}"


class Entry(NamedTuple):
    """A write that took place."""

    before: str
    """Version on which it was based."""
    version: str
    record: Record


class Recording(Protocol):
    """A backend that keeps its history."""

    history: list[Entry]

    @property
    def version(self) -> str: ...

    def respond(self, request: Request) -> Answer: ...

    def is_write(self, request: Request) -> bool: ...


class FakeEtcd:
    """The part of etcd's JSON gateway that the register uses, with one key. It omits default values, as etcd does."""

    def __init__(self) -> None:
        self.history: list[Entry] = []
        self.value: tuple[str, str, int] | None = None
        """Key and value in base64, and the revision."""
        self.cluster_id = "7"
        self.revision = 1
        self.password = ""
        """Password of the user `broker`; empty: no authentication."""
        self.tokens: list[str] = []
        """Tokens issued; only the last one is valid."""

    @property
    def version(self) -> str:
        return str(self.value[2]) if self.value else "0"

    def is_write(self, request: Request) -> bool:
        return request.path == "/v3/kv/txn"

    def expire_tokens(self) -> None:
        """Reject all tokens issued so far."""
        self.tokens.append("")

    def delete(self) -> None:
        """Delete the key."""
        self.value = None
        self.revision += 1

    def respond(self, request: Request) -> Answer:
        body = json.loads(request.body)
        if request.path == "/v3/auth/authenticate":
            if (body["name"], body["password"]) != ("broker", self.password):
                return _etcd_error(400, 3, "etcdserver: authentication failed, invalid user ID or password")
            self.tokens.append(f"token-{len(self.tokens)}")
            return Answer(200, {**self._header(), "token": self.tokens[-1]})
        if self.password:
            token = request.headers.get("authorization", "")
            if not token:
                return _etcd_error(400, 3, "etcdserver: user name is empty")
            if token != self.tokens[-1]:
                return _etcd_error(401, 16, "etcdserver: invalid auth token")
        if request.path == "/v3/kv/range":
            assert body["serializable"] is False
            return Answer(200, {**self._header(), **self._kvs(body["key"])})
        if request.path == "/v3/kv/txn":
            return Answer(200, self._txn(body))
        return _etcd_error(404, 5, "Not Found")

    def _txn(self, body: Mapping[str, Any]) -> dict[str, Any]:
        (compare,) = body["compare"]
        assert (compare["target"], compare["result"]) == ("MOD", "EQUAL")
        before = self.version
        succeeds = compare["mod_revision"] == before
        responses: list[object] = []
        for operation in body["success" if succeeds else "failure"]:
            if "request_put" in operation:
                put = operation["request_put"]
                self.revision += 1
                self.value = (put["key"], put["value"], self.revision)
                self.history.append(Entry(before, self.version, decode(b64decode(put["value"]))))
                responses.append({"response_put": self._header()})
            else:
                found = self._kvs(operation["request_range"]["key"])
                responses.append({"response_range": {"header": {"revision": str(self.revision)}, **found}})
        answer: dict[str, Any] = {**self._header(), "responses": responses}
        return {**answer, "succeeded": True} if succeeds else answer

    def _header(self) -> dict[str, Any]:
        revision = str(self.revision)
        return {"header": {"cluster_id": self.cluster_id, "member_id": "8", "revision": revision, "raft_term": "2"}}

    def _kvs(self, key: str) -> dict[str, Any]:
        if self.value is None or self.value[0] != key:
            return {}
        _, value, revision = self.value
        pair = {"key": key, "create_revision": "2", "mod_revision": str(revision), "version": "1", "value": value}
        return {"kvs": [pair], "count": "1"}


class FakeApiServer:
    """The part of the API server that the register uses, with one Lease."""

    def __init__(self) -> None:
        self.history: list[Entry] = []
        self.token = "valid"
        self.is_forbidden = False
        self._revision = 100
        self._created = 0
        self.lease: dict[str, Any] | None = None
        self.create()

    @property
    def version(self) -> str:
        if self.lease is None:
            return ""
        return f"{self.lease['metadata']['uid']}/{self.lease['metadata']['resourceVersion']}"

    def is_write(self, request: Request) -> bool:
        return request.method != "GET"

    def create(self) -> None:
        """Create the Lease as the operator does."""
        self._created += 1
        meta = {"name": LEASE, "namespace": NAMESPACE, "uid": f"uid-{self._created}", "labels": {"app": "delaymq"}}
        self._store({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": meta, "spec": {}})

    def edit(self, **fields: Any) -> None:
        """Change `spec` as a person does; `annotations` replaces the annotations. None removes a field."""
        lease = deepcopy(self.lease)
        assert lease is not None
        if "annotations" in fields:
            lease["metadata"]["annotations"] = fields.pop("annotations")
        lease["spec"] = {key: value for key, value in {**lease["spec"], **fields}.items() if value is not None}
        self._store(lease)

    def respond(self, request: Request) -> Answer:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized", "Unauthorized")
        if self.is_forbidden:
            return _status(403, "Forbidden", f'leases.coordination.k8s.io "{LEASE}" is forbidden')
        if request.path.partition("?")[0] != LEASE_PATH:
            return Answer(404, "404 page not found")
        if request.method == "GET":
            if self.lease is None:
                return _status(404, "NotFound", f'leases.coordination.k8s.io "{LEASE}" not found')
            return Answer(200, self.lease)
        assert (request.method, request.headers["content-type"]) == ("PATCH", "application/merge-patch+json")
        return self._patch(json.loads(request.body))

    def _patch(self, body: dict[str, Any]) -> Answer:
        if self.lease is None:
            return _status(404, "NotFound", f'leases.coordination.k8s.io "{LEASE}" not found')
        before = self.version
        sent = body["metadata"]
        if before != f"{sent['uid']}/{sent['resourceVersion']}":
            return _status(409, "Conflict", "the object has been modified")
        merged = _merged(self.lease, body)
        if merged != self.lease:
            self._store(merged)
            self.history.append(Entry(before, self.version, decode(sent["annotations"][ANNOTATION])))
        return Answer(200, self.lease)

    def _store(self, lease: dict[str, Any]) -> None:
        self._revision += 1
        lease["metadata"]["resourceVersion"] = str(self._revision)
        self.lease = deepcopy(lease)


class FakeSlices:
    """The part of the API server that publishes addresses, with one EndpointSlice."""

    def __init__(self) -> None:
        self.is_forbidden = False
        self.patches: list[dict[str, Any]] = []
        self._revision = 100
        self.slice: dict[str, Any] | None = None
        self.create()

    def is_write(self, request: Request) -> bool:
        return request.method != "GET"

    def create(self, *, epoch: str | None = None, address: str = "", kind: str = "IPv4") -> None:
        """Create the EndpointSlice as the operator does."""
        meta: dict[str, Any] = {"name": SLICE, "namespace": NAMESPACE, "uid": f"uid-{self._revision}"}
        if epoch is not None:
            meta["annotations"] = {EPOCH_ANNOTATION: epoch}
        endpoints = [{"addresses": [address]}] if address else None
        ports = [{"name": "broker", "port": 10911}]
        self.store(
            {"kind": "EndpointSlice", "metadata": meta, "addressType": kind, "endpoints": endpoints, "ports": ports}
        )

    def store(self, content: dict[str, Any]) -> None:
        """Store a version of the slice, as any writer does."""
        self._revision += 1
        content["metadata"]["resourceVersion"] = str(self._revision)
        self.slice = deepcopy(content)

    @property
    def published(self) -> tuple[str, list[str]]:
        """Epoch and addresses."""
        assert self.slice is not None
        epoch = (self.slice["metadata"].get("annotations") or {}).get(EPOCH_ANNOTATION, "")
        return epoch, [address for each in self.slice["endpoints"] or [] for address in each["addresses"]]

    def respond(self, request: Request) -> Answer:
        if self.is_forbidden:
            return _status(403, "Forbidden", f'endpointslices.discovery.k8s.io "{SLICE}" is forbidden')
        if self.slice is None or request.path.partition("?")[0] != SLICE_PATH:
            return _status(404, "NotFound", f'endpointslices.discovery.k8s.io "{SLICE}" not found')
        if request.method == "GET":
            return Answer(200, self.slice)
        assert (request.method, request.headers["content-type"]) == ("PATCH", "application/merge-patch+json")
        body = json.loads(request.body)
        self.patches.append(body)
        meta = self.slice["metadata"]
        if any(body["metadata"][key] != meta[key] for key in ("uid", "resourceVersion")):
            return _status(409, "Conflict", "the object has been modified")
        merged = _merged(self.slice, body)
        if merged != self.slice:
            self.store(merged)
        return Answer(200, self.slice)


def _merged(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


def _etcd_error(status: int, code: int, message: str) -> Answer:
    return Answer(status, {"error": message, "code": code, "message": message})


def _status(code: int, reason: str, message: str) -> Answer:
    details = {"name": LEASE, "group": "coordination.k8s.io", "kind": "leases"}
    content = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return Answer(code, {**content, "details": details, "code": code})
