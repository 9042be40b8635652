"""A message's properties: `name \\x01 value` joined by `\\x02` (docs/formats/store.md, record field 17)."""

from __future__ import annotations

NAME_VALUE_SEPARATOR = "\x01"
PAIR_SEPARATOR = "\x02"
# The record keeps the length of the properties in a signed 16-bit number.
MAX_PROPERTIES_BYTES = 32_767


def parse_properties(text: str) -> dict[str, str]:
    """The pairs of `text`; one without a name or a value is dropped, of two with one name the later wins."""
    pairs = {}
    for pair in text.split(PAIR_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if value and name:
            pairs[name] = value
    return pairs


def format_properties(properties: dict[str, str]) -> str:
    """The text for `properties`, without a separator at the end."""
    return PAIR_SEPARATOR.join([f"{name}\x01{value}" for name, value in properties.items()])


def decode_properties(data: bytes) -> dict[str, str]:
    """The pairs of a record's property bytes; bytes that are not UTF-8 survive a later `encode_properties`."""
    return parse_properties(data.decode("utf-8", "surrogateescape"))


def encode_properties(properties: dict[str, str]) -> bytes:
    """Property bytes for a record."""
    text = "\x02".join([f"{name}\x01{value}" for name, value in properties.items()])
    return text.encode() if text.isascii() else text.encode("utf-8", "surrogateescape")


def is_storable(name: str, value: str) -> bool:
    """Whether a pair survives the format: neither part may hold a separator, neither may be empty."""
    return bool(name) and bool(value) and not ({"\x01", "\x02"} & set(name + value))
