"""Java's `String.hashCode`, used to find tags and keys (docs/formats/store.md)."""

from __future__ import annotations

from functools import lru_cache
from operator import mul
from typing import Final

_WEIGHTS: Final = tuple(pow(31, power, 1 << 32) for power in reversed(range(256)))
"""Weights of a string's characters, from first to last: 31**255 to 31**0. A shorter string uses the last ones."""
_WEIGHTS_OF: Final = tuple(_WEIGHTS[len(_WEIGHTS) - count :] for count in range(65))
"""Weights by length, for the lengths of most keys; all lengths would take 264 KB."""


def _unsigned_hash(text: str) -> int:
    units: bytes | memoryview[int]
    if text.isascii():
        units = text.encode("ascii")
    else:
        # Java hashes UTF-16 code units; a lone surrogate is one of them.
        units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    count = len(units)
    if count <= len(_WEIGHTS):
        weights = _WEIGHTS_OF[count] if count < 65 else _WEIGHTS[-count:]
        total: int = sum(map(mul, units, weights))
        return total & 0xFFFFFFFF
    value = 0
    for unit in units:
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value


def java_hash(text: str) -> int:
    """Return the signed 32-bit hash of `text`, as Java computes it."""
    value = _unsigned_hash(text)
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value


# A cached text may have 32 KB: a thousand texts of a hostile producer take 32 MB.
@lru_cache(maxsize=1024)
def tags_code(tags: str) -> int:
    """Return the tags code of a consume queue entry: the hash of the whole `TAGS` value, or 0 without tags."""
    return java_hash(tags) if tags else 0


_CHANGING_CHARACTERS = 12
"""Length of the time and counter at the end of a unique id; the characters before them are the same for a process."""
_CHANGING_WEIGHTS = _WEIGHTS_OF[_CHANGING_CHARACTERS]
_UNCHANGING_FACTOR = pow(31, _CHANGING_CHARACTERS, 1 << 32)
_MAX_CACHED_KEY = 64
"""Unique ids have 32 characters; prefixes of longer keys would fill the memory."""


@lru_cache(maxsize=4096)
def _weighted_prefix_hash(prefix: str) -> int:
    return _unsigned_hash(prefix) * _UNCHANGING_FACTOR


def index_key_hash(topic: str, key: str) -> int:
    """Return the hash of `TOPIC#KEY` in the key index; it is never negative, and 0 for -2**31.

    This runs for each message, so the hash of the common prefix of a client's unique ids in a topic is cached.
    """
    if _CHANGING_CHARACTERS <= len(key) <= _MAX_CACHED_KEY and key.isascii():
        own: int = sum(map(mul, key[-_CHANGING_CHARACTERS:].encode(), _CHANGING_WEIGHTS))
        value = (_weighted_prefix_hash(f"{topic}#{key[:-_CHANGING_CHARACTERS]}") + own) & 0xFFFFFFFF
    else:
        value = _unsigned_hash(f"{topic}#{key}")
    if value == 0x8000_0000:
        return 0
    return 0x1_0000_0000 - value if value > 0x8000_0000 else value
