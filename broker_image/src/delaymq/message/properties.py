"""Properties of a message: `name \\x01 value` joined by `\\x02` (docs/formats/store.md, record field 17)."""

from __future__ import annotations

NAME_VALUE_SEPARATOR = "\x01"
PAIR_SEPARATOR = "\x02"
MAX_PROPERTIES_BYTES = 32_767
"""A record stores the length of the properties in a signed 16-bit number."""


def parse_properties(text: str) -> dict[str, str]:
    """Parse properties. Pairs without a name or a value are dropped; of pairs with the same name, the last wins."""
    pairs = {}
    for pair in text.split(PAIR_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if value and name:
            pairs[name] = value
    return pairs


def format_properties(properties: dict[str, str]) -> str:
    """Format properties as text without a trailing separator."""
    return PAIR_SEPARATOR.join([f"{name}\x01{value}" for name, value in properties.items()])


def decode_properties(data: bytes) -> dict[str, str]:
    """Decode the properties of a record; `encode_properties` restores bytes that are not UTF-8."""
    return parse_properties(data.decode("utf-8", "surrogateescape"))


def encode_properties(properties: dict[str, str]) -> bytes:
    """Encode properties for a record."""
    text = "\x02".join([f"{name}\x01{value}" for name, value in properties.items()])
    return text.encode() if text.isascii() else text.encode("utf-8", "surrogateescape")


def is_storable(name: str, value: str) -> bool:
    """Return whether a broker stores a pair: neither part is empty, or contains a separator or NUL."""
    return bool(name) and bool(value) and not ({"\0", "\x01", "\x02"} & set(name + value))
