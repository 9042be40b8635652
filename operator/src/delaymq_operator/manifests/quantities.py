"""Kubernetes quantities: `1Gi` and `1024Mi` are the same amount."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

Quantity = str | int | float

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MAX_CHARS = 64
"""An amount has few digits; this limit prevents the conversion of a long text into a number."""
_SUFFIXED = re.compile(r"([+-]?[0-9.]+)(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?)")


def parse_quantity(amount: Quantity) -> Decimal:
    """Return the amount as a number. ValueError if it is invalid."""
    text = str(amount).strip()
    if len(text) > _MAX_CHARS:
        raise ValueError(f"{text[:_MAX_CHARS]!r} … is not a quantity: use a value like 500m or 10Gi")
    try:
        found = _SUFFIXED.fullmatch(text)
        if found is None:
            return Decimal(text)
        number, suffix = found.groups()
        if suffix in _BINARY:
            return Decimal(number) * _BINARY[suffix]
        return Decimal(number).scaleb(_DECIMAL[suffix])
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a quantity: use a value like 500m or 10Gi") from None


def same_quantity(one: object, other: object) -> bool:
    """Return whether both are quantities of the same amount."""
    if not isinstance(one, (str, int, float)) or not isinstance(other, (str, int, float)):
        return False
    try:
        return parse_quantity(one) == parse_quantity(other)
    except ValueError:
        return False


def canonical(amount: Quantity) -> str:
    """Return the canonical spelling of an amount; other values are returned unchanged."""
    try:
        number = parse_quantity(amount)
    except ValueError:
        return str(amount)
    return format(number.normalize(), "f")
