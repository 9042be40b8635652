"""Codec for fastjson's dialect of JSON: integer keys without quotes, and objects as keys of maps.

msgspec parses standard JSON; the tolerant parser below reads only text that msgspec rejects. The writer quotes integer
keys, which fastjson accepts, but not objects as keys, since fastjson accepts them in no other form.
See docs/formats/wire.md, "Bodies".
"""

import math
import re
from collections.abc import Callable, Hashable
from json import decoder
from typing import Any, Final

import msgspec

from delaymq.protocol.errors import FastJsonError

MAX_DEPTH: Final = 64
"""Maximum nesting of arrays and objects, which protects the stack; known bodies have at most 6."""
MAX_TEXT_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a text, which is that of a frame."""
MAX_VALUES: Final = 1_000_000
"""Maximum number of keys, elements and containers: bounds the memory (about 100 bytes each) and time of parsing."""

MAX_DIGITS: Final = 20
"""Maximum length of a 64-bit integer with its sign; the time to parse a longer one grows quadratically."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_skip_space = re.compile(r"[ \t\r\n]*").match
_number = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII).match
_scan_string: Callable[[str, int, bool], tuple[str, int]] = decoder.scanstring  # type: ignore[attr-defined]
_WORDS: Final = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}


class ObjectKey(tuple[tuple[str, Hashable], ...]):
    """An object as the key of a map: its fields as (name, value) pairs, sorted by name; hashable."""

    __slots__ = ()

    @classmethod
    def of(cls, fields: dict[Any, Any]) -> "ObjectKey":
        """Return the key for an object; nested values are frozen, too."""
        return cls(sorted(((str(name), _frozen(value)) for name, value in fields.items()), key=lambda pair: pair[0]))

    def as_dict(self) -> dict[str, Any]:
        """Return the object; frozen arrays in it remain tuples."""
        return {name: value.as_dict() if isinstance(value, ObjectKey) else value for name, value in self}


def _frozen(value: Any) -> Hashable:
    if isinstance(value, dict):
        return ObjectKey.of(value)
    if isinstance(value, list):
        return tuple(_frozen(each) for each in value)
    return value  # type: ignore[no-any-return]


def loads(
    data: bytes | str,
    *,
    object_key: Callable[[dict[Any, Any]], Hashable] = ObjectKey.of,
    max_bytes: int = MAX_TEXT_BYTES,
    max_values: int = MAX_VALUES,
    max_dialect_bytes: int = MAX_TEXT_BYTES,
) -> Any:
    """Parse standard JSON or fastjson's dialect.

    Unquoted integer keys become int, and `object_key` converts objects as keys. FastJsonError for any other text, and
    beyond the limits; `max_dialect_bytes` is the limit for text that is not standard JSON.
    """
    check_size(data, max_bytes, max_values)
    try:
        return _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if len(data) > max_dialect_bytes:
            raise FastJsonError(
                f"the text is not standard JSON ({error}), and its {len(data)} bytes exceed the limit of"
                f" {max_dialect_bytes} for fastjson's dialect"
            ) from error
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
        return _Parser(text, object_key).whole()
    except UnicodeDecodeError as error:
        raise FastJsonError(f"the text is not UTF-8: {error}") from error
    except FastJsonError:
        raise
    except ValueError as error:  # of the standard library's string scanner, or an absurdly long number
        raise FastJsonError(str(error)) from error


def check_size(data: bytes | str, max_bytes: int, max_values: int) -> None:
    """Raise FastJsonError if `data` could exceed the limits when parsed; this check is cheap."""
    if len(data) > max_bytes:
        raise FastJsonError(f"the text of {len(data)} bytes exceeds the limit of {max_bytes}")
    if len(data) > max_values:
        # Each value follows one of these characters. Those within strings are counted, too, hence the generous limit.
        raw = data.encode(errors="replace") if isinstance(data, str) else data
        values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
        if values > max_values:
            raise FastJsonError(f"the text has more than {max_values} values")


class _Parser:
    """Recursive descent parser. Methods take a position and return the position after the text that they read."""

    __slots__ = ("_object_key", "_text")

    def __init__(self, text: str, object_key: Callable[[dict[Any, Any]], Hashable]) -> None:
        self._text = text
        self._object_key = object_key

    def whole(self) -> Any:
        value, at = self._value(self._space(0), 0)
        if self._space(at) != len(self._text):
            raise self._error(at, "the end")
        return value

    def _space(self, at: int) -> int:
        match = _skip_space(self._text, at)
        assert match is not None  # it also matches the empty text
        return match.end()

    def _error(self, at: int, wanted: str) -> FastJsonError:
        return FastJsonError(f"character {at}: expected {wanted}, found {self._text[at : at + 16]!r}")

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        first = self._text[at : at + 1]
        if first == '"':
            return self._string(at)
        if first == "{":
            return self._object(at, depth + 1)
        if first == "[":
            return self._array(at, depth + 1)
        if first in _WORDS:
            word, value = _WORDS[first]
            if self._text.startswith(word, at):
                return value, at + len(word)
        return self._number(at)

    def _string(self, at: int) -> tuple[str, int]:
        value, at = _scan_string(self._text, at + 1, True)
        if not value.isascii():
            value.encode()  # rejects a lone surrogate, which could be read but not written
        return value, at

    def _number(self, at: int) -> tuple[int | float, int]:
        match = _number(self._text, at)
        if match is None:
            raise self._error(at, "a value")
        fraction, exponent = match.groups()
        if fraction is None and exponent is None:
            if match.end() - at > MAX_DIGITS:
                raise self._error(at, "an integer of 64 bits")
            return int(match.group()), match.end()
        value = float(match.group())
        if math.isinf(value):
            raise self._error(at, "a number in range")
        return value, match.end()

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        self._check_depth(at, depth)
        text = self._text
        values: list[Any] = []
        at = self._space(at + 1)
        if text[at : at + 1] == "]":
            return values, at + 1
        while True:
            value, at = self._value(at, depth)
            values.append(value)
            at = self._space(at)
            character = text[at : at + 1]
            if character == "]":
                return values, at + 1
            if character != ",":
                raise self._error(at, "',' or ']'")
            at = self._space(at + 1)

    def _object(self, at: int, depth: int) -> tuple[dict[Any, Any], int]:
        self._check_depth(at, depth)
        text = self._text
        fields: dict[Any, Any] = {}
        at = self._space(at + 1)
        if text[at : at + 1] == "}":
            return fields, at + 1
        while True:
            key, at = self._key(at, depth)
            at = self._space(at)
            if text[at : at + 1] != ":":
                raise self._error(at, "':'")
            fields[key], at = self._value(self._space(at + 1), depth)
            at = self._space(at)
            character = text[at : at + 1]
            if character == "}":
                return fields, at + 1
            if character != ",":
                raise self._error(at, "',' or '}'")
            at = self._space(at + 1)

    def _key(self, at: int, depth: int) -> tuple[Hashable, int]:
        first = self._text[at : at + 1]
        if first == '"':
            return self._string(at)
        if first == "{":
            fields, at = self._object(at, depth + 1)
            return self._object_key(fields), at
        number, end = self._number(at)
        if isinstance(number, float):
            raise self._error(at, "a key")
        return number, end

    def _check_depth(self, at: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise FastJsonError(f"character {at}: nested more than {MAX_DEPTH} deep")


def dumps(value: Any) -> bytes:
    """Return compact JSON of built-in values and msgspec Structs; Structs and ObjectKeys as keys become objects.

    TypeError for any other value.
    """
    try:
        return _encode(value)
    except TypeError:  # an object as a key, which standard JSON does not allow
        pieces: list[bytes] = []
        _write(value, pieces)
        return b"".join(pieces)


def _write(value: Any, pieces: list[bytes]) -> None:
    if isinstance(value, msgspec.Struct):
        value = {
            each.encode_name: field
            for each in msgspec.structs.fields(value)
            if (field := getattr(value, each.name)) is not None
        }
    if isinstance(value, ObjectKey):
        value = value.as_dict()
    if isinstance(value, dict):
        separator = b"{"
        for key, each in value.items():
            pieces.append(separator)
            _write_key(key, pieces)
            pieces.append(b":")
            _write(each, pieces)
            separator = b","
        pieces.append(b"}" if value else b"{}")
    elif isinstance(value, list | tuple):
        separator = b"["
        for each in value:
            pieces.append(separator)
            _write(each, pieces)
            separator = b","
        pieces.append(b"]" if value else b"[]")
    else:
        pieces.append(_encode(value))


def _write_key(key: Hashable, pieces: list[bytes]) -> None:
    if isinstance(key, msgspec.Struct | ObjectKey):
        _write(key, pieces)
    elif isinstance(key, str):
        pieces.append(_encode(key))
    elif isinstance(key, int) and not isinstance(key, bool):
        pieces.append(b'"%d"' % key)
    else:
        raise TypeError(f"a {type(key).__name__} cannot be a key of a map")
