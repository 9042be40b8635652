"""JSON in one form, and its hash: what is equal looks equal."""

from __future__ import annotations

import hashlib
import json

_HASH_CHARS = 16


def compact(value: object) -> str:
    """JSON in the one form that annotations have."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: object) -> str:
    """A short hash of JSON data, the same for equal data."""
    return short_hash(compact(value))


def short_hash(text: str) -> str:
    """Enough of a hash to tell texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]
