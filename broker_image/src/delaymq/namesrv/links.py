"""Which open connections said that a broker is at an address.

No connection pushes out another one: a broker's routes end with the last of them, so that repeating a registration and
closing the connection ends nothing.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from delaymq.namesrv.shares import Shares

MAX_LINKS: Final = 40_000
"""Pairs of connection and address: of each broker that may be registered its connection, and some from before."""


class Links:
    """An index in both directions."""

    def __init__(self) -> None:
        self.shares = Shares(MAX_LINKS, "connections of brokers")
        self._of_address: dict[str, set[int]] = {}
        self._of_session: dict[int, dict[str, bytes]] = {}
        """Session → address → who is charged for the pair."""

    def of(self, address: str) -> Set[int]:
        """The sessions."""
        return self._of_address.get(address, frozenset())

    def add(self, address: str, session_id: int, payer: bytes) -> None:
        """Remembers a pair. One beyond the payer's share is not: the end of that connection goes unnoticed."""
        if session_id in self.of(address) or self.shares.problem(payer) is not None:
            return
        self._of_address.setdefault(address, set()).add(session_id)
        self._of_session.setdefault(session_id, {})[address] = payer
        self.shares.add(payer)

    def forget(self, address: str) -> None:
        """Nobody's word counts any more: the broker is gone."""
        for session_id in list(self.of(address)):
            self._remove(address, session_id)

    def closed(self, session_id: int) -> list[str]:
        """Removes a connection; the addresses of which it was the last."""
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
