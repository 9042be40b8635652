"""Canonical JSON and its hash."""

from __future__ import annotations

import hashlib
import json

_HASH_CHARS = 16


def compact(value: object) -> str:
    """Return canonical JSON, as used in annotations."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: object) -> str:
    """Return a short hash of JSON data, the same for equal data."""
    return short_hash(compact(value))


def short_hash(text: str) -> str:
    """Return a short hash that distinguishes texts."""
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]
