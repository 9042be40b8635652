"""The CRDs of this repository, and traversal of their schemas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY_PATH = Path(__file__).resolve().parents[3]
CRDS_PATH = REPOSITORY_PATH / "crds"
EXAMPLES_PATH = REPOSITORY_PATH / "examples" / "kubernetes"
Schema = dict[str, Any]


def load_crds() -> dict[str, Schema]:
    """Return the CustomResourceDefinitions by kind."""
    found = [yaml.safe_load(file.read_text()) for file in sorted(CRDS_PATH.glob("*.yaml"))]
    return {crd["spec"]["names"]["kind"]: crd for crd in found}


def schema_of(kind: str) -> Schema:
    """Return the schema of a kind's only version."""
    [version] = load_crds()[kind]["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every node with its path, such as `spec.imagePullSecrets[].name` or `spec.config{}`; empty for the root."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


def at(schema: Schema, path: str) -> Schema:
    """Return the node at a path of `walk`."""
    return dict(walk(schema))[path]


def with_defaults(schema: Schema, value: Any) -> Any:
    """Return a value with the schema's defaults in place of missing fields, as the API server stores it."""
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, child in schema.get("properties", {}).items():
        if name not in filled and "default" in child:
            filled[name] = child["default"]
        if name in filled:
            filled[name] = with_defaults(child, filled[name])
    return filled
