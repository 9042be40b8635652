"""How much of each table one host may take without a signature.

A stranger can make up names, but not addresses that answers reach. Signed registrations are counted separately, so that
unsigned ones never take their room.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

SIGNED: Final = b""
"""The payer of what an account vouched for."""
HOSTS_PER_TABLE: Final = 4
"""One host may take this fraction of a table."""


class Shares:
    """Who brought how many entries of one table."""

    def __init__(self, limit: int, what: str) -> None:
        """`limit` holds for all unsigned entries together, and for all signed ones."""
        self.limit = limit
        self.host_limit = limit // HOSTS_PER_TABLE
        self._what = what
        self._by_payer: Counter[bytes] = Counter()
        self._unsigned = 0

    def problem(self, payer: bytes, added: int = 1) -> str | None:
        """Why `payer` cannot bring so many more; None: it can."""
        if not added:
            return None
        taken = self._by_payer[SIGNED] if payer == SIGNED else self._unsigned
        if taken + added > self.limit:
            return f"{self.limit} {self._what} are registered already"
        if payer != SIGNED and self._by_payer[payer] + added > self.host_limit:
            return (
                f"your address may register {self.host_limit} {self._what} without a signature, and"
                f" {self._by_payer[payer]} of them are there: unregister some, or sign (namesrvAccountFile)"
            )
        return None

    def add(self, payer: bytes) -> None:
        """One more entry."""
        self._by_payer[payer] += 1
        self._unsigned += payer != SIGNED

    def drop(self, payer: bytes) -> None:
        """One of its entries is gone."""
        self._by_payer[payer] -= 1
        self._unsigned -= payer != SIGNED
        if not self._by_payer[payer]:
            del self._by_payer[payer]
