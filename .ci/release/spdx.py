"""SPDX licence expressions: `(MIT OR Apache-2.0) AND Unicode-3.0`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from release.errors import ReleaseError

_TOKEN = re.compile(r"[()]|[^\s()]+")


def canonical(expression: str) -> str:
    """Return an expression in its canonical spelling. Raises ReleaseError if an id or the syntax is not SPDX's."""
    try:
        return canonicalize_license_expression(expression)
    except InvalidLicenseExpression as error:
        raise ReleaseError(f"{expression!r} is not an SPDX licence expression") from error


def ids_of(expression: str) -> list[str]:
    """Return the licences in an expression, each with its exception (`Apache-2.0 WITH LLVM-exception`)."""
    found: list[str] = []

    def is_met(licence: str) -> bool:
        found.append(licence)
        return True

    permits(expression, is_met)
    return found


def permits(expression: str, is_met: Callable[[str], bool]) -> bool:
    """Return whether an expression is met: both sides of AND, one side of OR. `is_met` is called for each licence.

    Raises ReleaseError if the expression is not valid.
    """
    return _Reader(canonical(expression), is_met).either()


class _Reader:
    """Recursive descent over a valid expression; AND binds more tightly than OR."""

    def __init__(self, expression: str, is_met: Callable[[str], bool]) -> None:
        self._tokens: Iterator[str] = iter(_TOKEN.findall(expression))
        self._next = next(self._tokens, "")
        self._is_met = is_met

    def either(self) -> bool:
        met = self._both()
        while self._next == "OR":
            self._take()
            met |= self._both()
        return met

    def _both(self) -> bool:
        met = self._one()
        while self._next == "AND":
            self._take()
            met &= self._one()
        return met

    def _one(self) -> bool:
        token = self._take()
        if token == "(":
            met = self.either()
            self._take()
            return met
        if self._next == "WITH":
            token += f" {self._take()} {self._take()}"
        return self._is_met(token)

    def _take(self) -> str:
        token, self._next = self._next, next(self._tokens, "")
        return token
