"""The CRDs of this checkout as schemas to walk through."""

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
    """Kind → CustomResourceDefinition."""
    found = [yaml.safe_load(file.read_text()) for file in sorted(CRDS_PATH.glob("*.yaml"))]
    return {crd["spec"]["names"]["kind"]: crd for crd in found}


def schema_of(kind: str) -> Schema:
    """The schema of a kind's only version."""
    [version] = load_crds()[kind]["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every node with its path, `spec.imagePullSecrets[].name` and `spec.config{}` among them; the root has none."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


def at(schema: Schema, path: str) -> Schema:
    """The node at a path of `walk`."""
    return dict(walk(schema))[path]


def with_defaults(schema: Schema, value: Any) -> Any:
    """What the API server makes of a value: defaults filled in where a field is missing."""
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, child in schema.get("properties", {}).items():
        if name not in filled and "default" in child:
            filled[name] = child["default"]
        if name in filled:
            filled[name] = with_defaults(child, filled[name])
    return filled
