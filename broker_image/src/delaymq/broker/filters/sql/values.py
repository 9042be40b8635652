"""Values of SQL92 expressions and their comparison as in RocketMQ 4.9: strings are converted to the other side's type.

Property values are UTF-8 bytes. A string that cannot be converted raises ValueError, which ends the whole evaluation:
the message does not match, whatever the other conditions are.
"""

from __future__ import annotations

import math
import re
from typing import Final

from delaymq.broker.filters.sql.ast import Constant

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1

_INTEGER: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""Syntax of Java's Double.valueOf, without surrounding blanks."""
_NUMBER: Final = re.compile(
    rb"([+-]?)(?:(NaN)|(Infinity)|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    rb"|(0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)
_BLANKS: Final = bytes(range(0x21))


class NoBooleanError(ValueError):
    """Comparison of TRUE, FALSE or a condition with a string on its right, which fails in Java."""


def to_int(value: bytes) -> int:
    """Return the 32-bit integer. Raises ValueError."""
    number = int(value) if value.isdigit() and len(value) < 11 else _integer(value)
    if -MAX_INT - 1 <= number <= MAX_INT:
        return number
    raise ValueError("not a 32-bit integer")


def to_long(value: bytes) -> int:
    """Return the 64-bit integer. Raises ValueError."""
    number = int(value) if value.isdigit() and len(value) < 20 else _integer(value)
    if -MAX_LONG - 1 <= number <= MAX_LONG:
        return number
    raise ValueError("not a 64-bit integer")


def to_double(value: bytes) -> float:
    """Return the decimal number, which may be infinite or NaN. Raises ValueError."""
    if _DECIMAL.fullmatch(value):
        return float(value)
    match = _NUMBER.fullmatch(value.strip(_BLANKS))
    if match is None:
        raise ValueError("not a decimal number")
    sign, no_number, infinity, decimal, hexadecimal = match.groups()
    if no_number:
        return math.nan
    size = math.inf if infinity else float(decimal) if decimal else _hexadecimal(hexadecimal.decode())
    return -size if sign == b"-" else size


def to_finite_order(value: bytes) -> float:
    """Return the number for a comparison with a finite number. As in Java, NaN is greater than all others."""
    number = to_double(value)
    return number if number == number else math.inf


def to_boolean(value: bytes) -> bool:
    """Return whether a string is "true", in any case."""
    return value.lower() == b"true"


def order_of(left: bytes, right: bytes) -> int:
    """Compare two strings as decimal numbers in Java's total order; return a negative number, 0 or a positive one.

    Raises ValueError for strings that are not numbers.
    """
    a, b = to_double(left), to_double(right)
    if a < b:
        return -1
    if a > b:
        return 1
    return _rank(a) - _rank(b)


def no_boolean() -> bool:
    """Raise NoBooleanError, as Java does."""
    raise NoBooleanError("a string on the right of a boolean")


def last_but(properties: bytes, name: bytes) -> bytes | None:
    """Return the last value of `name` (`\x02NAME\x01`) that is not empty; `properties` start and end with `\x02`.

    For the rare message that states a property twice, the last time without a value. Such a pair counts as missing.
    """
    at = len(properties)
    while (at := properties.rfind(name, 0, at)) >= 0:
        begin = at + len(name)
        value = properties[begin : properties.find(b"\x02", begin)]
        if value:
            return value
    return None


def is_before(left: Constant, right: Constant) -> bool:
    """Return whether the bounds of BETWEEN are in the wrong order. Only numbers pass the later checks."""
    if isinstance(left.value, (int, float)) and isinstance(right.value, (int, float)):
        if left.kind == "double" or right.kind == "double":
            return float(left.value) < float(right.value)
        return left.value < right.value
    return False


def _rank(number: float) -> int:
    if number != number:
        return 2
    return 1 if math.copysign(1, number) > 0 else 0


def _integer(value: bytes) -> int:
    text = value.decode("utf-8", "replace")
    # Java accepts the digits of any script within 16 bits.
    if _INTEGER.fullmatch(text) and max(text) <= "\uffff":
        sign = -1 if text[0] == "-" else 1
        digits = text.lstrip("+-")
        significant = digits.lstrip("0")
        # Leading zeros are allowed. More digits than these are out of any range, and slow to parse.
        return sign * int(significant[:24] or "0")
    raise ValueError("not an integer")


def _hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return math.inf
