"""Validation and normalisation of message fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from delaymq.message.errors import IllegalMessageError

SHOWN_CHARACTERS: Final = 60
"""Maximum number of characters of an invalid value shown in an error."""
_KINDS: Final[Mapping[str, tuple[type, str, str]]] = {
    "topic": (str, "a string", ""),
    "tags": (str, "a string", ": a message has one tag"),
    "properties": (dict, "a dict of strings", ""),
    "delay_level": (int, "a whole number", ": for a delay such as '5s', use delay='5s'"),
    "flag": (int, "a whole number", ""),
}


def check_flag(flag: int) -> None:
    """Raise IllegalMessageError if no record can contain the flag."""
    if not -(1 << 31) <= flag < 1 << 31:
        raise IllegalMessageError(f"flag must be at least -2147483648 and at most 2147483647, not {flag}")


def checked_body(body: object) -> bytes:
    """Return the body as bytes. IllegalMessageError for any other type."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)  # a copy, which does not change while the message waits to be sent
    hint = ": encode it, as in body=text.encode()" if isinstance(body, str) else ""
    raise IllegalMessageError(f"the body must be bytes, not {_shown(body)}{hint}")


def checked_keys(keys: object) -> tuple[str, ...]:
    """Return the keys as a tuple; a string is one key. IllegalMessageError for anything but strings."""
    if isinstance(keys, str):
        return (keys,) if keys else ()
    if not isinstance(keys, tuple | list | set | frozenset):
        raise IllegalMessageError(f"keys must be a string, or a tuple or list of strings, not {_shown(keys)}")
    for key in keys:
        if not isinstance(key, str):
            raise IllegalMessageError(f"each key must be a string, not {_shown(key)}")
    return tuple(keys)


def wrong_kind(*values: object) -> IllegalMessageError:
    """Return the error for values of the fields in `_KINDS`, in this order, one of which has the wrong type."""
    for value, (name, (kind, words, hint)) in zip(values, _KINDS.items(), strict=True):
        if not isinstance(value, kind):
            return IllegalMessageError(f"{name} must be {words}, not {_shown(value)}{hint}")
    raise ValueError("no value has the wrong type")


def check_property(name: object, value: object) -> None:
    """Raise IllegalMessageError if the name or the value of a property is not a string."""
    if not isinstance(name, str):
        raise IllegalMessageError(f"names of properties must be strings, not {_shown(name)}")
    if not isinstance(value, str):
        raise IllegalMessageError(f"property {name}: the value must be a string, not {_shown(value)}")


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}…"
    return f"{text} ({type(value).__name__})"
