"""Values of SQL92 expressions as RocketMQ 4.9 compares them: strings become what they are compared with.

Property values are UTF-8 bytes here. A string that cannot become the other side's type raises ValueError, which ends
the whole evaluation: the message does not match, whatever stands beside it.
"""

from __future__ import annotations

import math
import re
from typing import Final

from delaymq.broker.filters.sql.ast import Constant

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1

_INTEGER: Final = re.compile(r"[+-]?\d+")
# What Java's Double.valueOf takes; blanks around it have been cut.
_DECIMAL: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NUMBER: Final = re.compile(
    rb"([+-]?)(?:(NaN)|(Infinity)|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    rb"|(0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)
_BLANKS: Final = bytes(range(0x21))


class NoBooleanError(ValueError):
    """Java fails where TRUE, FALSE or a condition stands on the left of a string."""


def to_int(value: bytes) -> int:
    """A 32-bit integer; ValueError."""
    number = int(value) if value.isdigit() and len(value) < 11 else _integer(value)
    if -MAX_INT - 1 <= number <= MAX_INT:
        return number
    raise ValueError("no 32-bit integer")


def to_long(value: bytes) -> int:
    """A 64-bit integer; ValueError."""
    number = int(value) if value.isdigit() and len(value) < 20 else _integer(value)
    if -MAX_LONG - 1 <= number <= MAX_LONG:
        return number
    raise ValueError("no 64-bit integer")


def to_double(value: bytes) -> float:
    """A decimal number, which may be infinite or no number; ValueError."""
    if _DECIMAL.fullmatch(value):
        return float(value)
    match = _NUMBER.fullmatch(value.strip(_BLANKS))
    if match is None:
        raise ValueError("no decimal number")
    sign, no_number, infinity, decimal, hexadecimal = match.groups()
    if no_number:
        return math.nan
    size = math.inf if infinity else float(decimal) if decimal else _hexadecimal(hexadecimal.decode())
    return -size if sign == b"-" else size


def to_finite_order(value: bytes) -> float:
    """As `to_double`, for comparisons with a finite number: what is no number is above all, as in Java."""
    number = to_double(value)
    return number if number == number else math.inf


def to_boolean(value: bytes) -> bool:
    """Whether a string says true."""
    return value.lower() == b"true"


def order_of(left: bytes, right: bytes) -> int:
    """Negative, 0 or positive: two strings compared as decimal numbers by Java's total order; ValueError."""
    a, b = to_double(left), to_double(right)
    if a < b:
        return -1
    if a > b:
        return 1
    return _rank(a) - _rank(b)


def no_boolean() -> bool:
    """Always raises, where Java does."""
    raise NoBooleanError("a string on the right of a boolean")


def last_but(properties: bytes, name: bytes) -> bytes | None:
    """The last value of `name` (`\\x02NAME\\x01`) that is not empty; `properties` begin and end with `\\x02`.

    For the rare message that states a property twice, and empty at last: such a pair counts as missing.
    """
    at = len(properties)
    while (at := properties.rfind(name, 0, at)) >= 0:
        begin = at + len(name)
        value = properties[begin : properties.find(b"\x02", begin)]
        if value:
            return value
    return None


def is_before(left: Constant, right: Constant) -> bool:
    """Whether BETWEEN's bounds are the wrong way round. Only numbers get further than this check."""
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
    # Java reads any script's digits, but none beyond 16 bits.
    if _INTEGER.fullmatch(text) and max(text) <= "\uffff":
        sign = -1 if text[0] == "-" else 1
        digits = text.lstrip("+-")
        significant = digits.lstrip("0")
        # Leading zeros are free; more digits than these are out of every range, and slow to read.
        return sign * int(significant[:24] or "0")
    raise ValueError("no integer")


def _hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return math.inf
