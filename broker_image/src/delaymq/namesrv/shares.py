"""Limits on each host's share of a table without signatures.

A stranger can invent names, but not addresses that receive responses. Signed registrations are counted separately, so
that unsigned ones never use up their capacity.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

SIGNED: Final = b""
"""Payer of signed entries."""
HOSTS_PER_TABLE: Final = 4
"""Fraction of a table that one host may use, as a divisor."""


class Shares:
    """Number of entries of one table by payer."""

    def __init__(self, limit: int, what: str) -> None:
        """`limit` applies to all unsigned entries together, and to all signed ones."""
        self.limit = limit
        self.host_limit = limit // HOSTS_PER_TABLE
        self._what = what
        self._by_payer: Counter[bytes] = Counter()
        self._unsigned = 0

    def problem(self, payer: bytes, added: int = 1) -> str | None:
        """Return why `payer` cannot add more entries; None if it can."""
        if not added:
            return None
        taken = self._by_payer[SIGNED] if payer == SIGNED else self._unsigned
        if taken + added > self.limit:
            return f"the limit of {self.limit} {self._what} is reached"
        if payer != SIGNED and self._by_payer[payer] + added > self.host_limit:
            return (
                f"your address may register {self.host_limit} {self._what} without a signature, and"
                f" has {self._by_payer[payer]}: unregister some, or sign (namesrvAccountFile)"
            )
        return None

    def add(self, payer: bytes) -> None:
        """Count an added entry."""
        self._by_payer[payer] += 1
        self._unsigned += payer != SIGNED

    def drop(self, payer: bytes) -> None:
        """Count a removed entry."""
        self._by_payer[payer] -= 1
        self._unsigned -= payer != SIGNED
        if not self._by_payer[payer]:
            del self._by_payer[payer]
