"""Prefilter that rejects most messages by searching for bytes that the properties of every match contain."""

from __future__ import annotations

from typing import Final

from delaymq.broker.filters.sql.ast import And, Constant, Equals, In, Node, Property

MAX_NEEDLE_BYTES: Final = 24
"""Maximum length. Bytes that nearly repeat themselves may be compared this many times at each position."""


def needle_of(condition: Node) -> bytes:
    """Return the end of `name 1 value` of a property that must equal a string, the longest one; empty without one."""
    return max(_needles(condition), key=len, default=b"")


def _needles(condition: Node) -> list[bytes]:
    if isinstance(condition, And):
        return [needle for part in condition.parts for needle in _needles(part)]
    if isinstance(condition, In) and condition.wanted and len(condition.strings) == 1:
        return [_needle(condition.name, *condition.strings)]
    if isinstance(condition, Equals):
        sides = ((condition.left, condition.right), (condition.right, condition.left))
        return [
            _needle(name.name, constant.value)
            for name, constant in sides
            if isinstance(name, Property) and isinstance(constant, Constant) and isinstance(constant.value, str)
        ]
    return []


def _needle(name: str, value: str) -> bytes:
    return f"{name}\1{value}".encode("utf-8", "surrogatepass")[-MAX_NEEDLE_BYTES:]
