"""Open connections that registered each broker address.

Connections do not replace each other: a broker's routes end with the last one, so that repeating a registration and
closing the connection has no effect.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from delaymq.namesrv.shares import Shares

MAX_LINKS: Final = 40_000
"""Maximum pairs of connection and address: one per possible broker, and some older ones."""


class Links:
    """Index of connections and addresses in both directions."""

    def __init__(self) -> None:
        self.shares = Shares(MAX_LINKS, "connections of brokers")
        self._of_address: dict[str, set[int]] = {}
        self._of_session: dict[int, dict[str, bytes]] = {}
        """Session → address → payer of the pair."""

    def of(self, address: str) -> Set[int]:
        """Return the sessions of an address."""
        return self._of_address.get(address, frozenset())

    def add(self, address: str, session_id: int, payer: bytes) -> None:
        """Add a pair, unless the payer's share is exhausted; the end of such a connection goes unnoticed."""
        if session_id in self.of(address) or self.shares.problem(payer) is not None:
            return
        self._of_address.setdefault(address, set()).add(session_id)
        self._of_session.setdefault(session_id, {})[address] = payer
        self.shares.add(payer)

    def forget(self, address: str) -> None:
        """Remove all connections of a removed broker."""
        for session_id in list(self.of(address)):
            self._remove(address, session_id)

    def closed(self, session_id: int) -> list[str]:
        """Remove a connection, and return the addresses for which it was the last one."""
        addresses = list(self._of_session.get(session_id, ()))
        for address in addresses:
            self._remove(address, session_id)
        return [address for address in addresses if address not in self._of_address]

    def _remove(self, address: str, session_id: int) -> None:
        self.shares.drop(self._of_session[session_id].pop(address))
        if not self._of_session[session_id]:
            del self._of_session[session_id]
        self._of_address[address].discard(session_id)
        if not self._of_address[address]:
            del self._of_address[address]
