"""Requests for the project's resources to a real API server, and its validation errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
from delaymq_operator.api import names

from delaymq_operator_testing.api_server import ApiError, ApiServer
from delaymq_operator_testing.crd_files import Schema, schema_of, walk

Spec = dict[str, Any]
CLASS_FIXED = (
    "spec.storage.storageClassName",
    "the storage class of bound volumes cannot change: restore the previous storageClassName, or move to a new Broker"
    " with the other class",
)
"""Field and message of the error if the storage class of bound volumes is changed."""


def collection(namespace: str, kind: str) -> str:
    """Return the path of a kind's objects."""
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURALS[kind]}"


def manifest(kind: str, name: str, spec: Spec) -> Spec:
    """Return a manifest for `create`."""
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def would_make(api_server: ApiServer, namespace: str, kind: str, name: str, spec: Spec) -> Spec:
    """Return the object that the API server would store (dry run)."""
    return api_server.create(f"{collection(namespace, kind)}?dryRun=All", manifest(kind, name, spec))


def refusal(api_server: ApiServer, namespace: str, kind: str, name: str, spec: Spec) -> list[tuple[str, str]]:
    """Return the fields and messages of the error when the object is created."""
    with pytest.raises(ApiError) as refused:
        would_make(api_server, namespace, kind, name, spec)
    return sentences(refused.value)


def sentences(refused: ApiError) -> list[tuple[str, str]]:
    """Return the fields and messages of an error response."""
    assert refused.status == 422
    found = [(cause["field"], cause["message"]) for cause in refused.body["details"]["causes"]]
    # The schema is checked first; if it fails, an additional cause states that the rules were not checked.
    kept = [(field, message) for field, message in found if "some validation rules were not checked" not in message]
    # Large values are not shown, and "Invalid value" shows types only: the message follows this prefix.
    prefix = re.compile(r'(Invalid value: (?:"(?:[^"\\]|\\.)*"|-?\d+): |Too many: \d+: )')
    return [(field, prefix.sub("", message, count=1)) for field, message in kept]


def check_change(
    api_server: ApiServer, namespace: str, kind: str, before: Spec, after: Spec, refused: tuple[str, str] | None
) -> None:
    """Create an object and change it: assert that the change is rejected with `refused`, or accepted (None)."""
    made = api_server.create(collection(namespace, kind), manifest(kind, "t", before))
    changed = manifest(kind, "t", after)
    changed["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    if refused is None:
        api_server.request("PUT", f"{collection(namespace, kind)}/t", changed)
        return
    with pytest.raises(ApiError) as error:
        api_server.request("PUT", f"{collection(namespace, kind)}/t", changed)
    assert sentences(error.value) == [refused]


def not_kept(asked: Any, got: Any, path: str = "spec") -> list[str]:
    """Return the paths of requested values that were not kept."""
    if isinstance(asked, dict) and isinstance(got, dict):
        return [gap for key, value in asked.items() for gap in not_kept(value, got.get(key), f"{path}.{key}")]
    return [] if asked == got else [path]


def rules_without(kind: str, told: set[str], *, below: str = "", but: str = "spec.config") -> list[str]:
    """Return the messages of a kind's rules that are missing from `told`.

    Covers fields whose paths begin with `below` and do not begin with `but`. Messages composed at run time are omitted.
    """
    nodes: list[Schema] = [
        node for path, node in walk(schema_of(kind)) if path.startswith(below) and not path.startswith(but)
    ]
    rules = [rule for node in nodes for rule in node.get("x-kubernetes-validations", [])]
    fixed = [rule["message"] for rule in rules if "messageExpression" not in rule]
    return [message for message in fixed if message not in told]
