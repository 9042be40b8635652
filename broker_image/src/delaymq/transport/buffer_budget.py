"""What all connections of a server may hold together: half-received requests and unsent answers.

Each connection has limits of its own, but a thousand peers that each announce a large request and fall silent, or that
each ask for much and read nothing, would cost the sum. Above the budget the connection that has held its share for the
longest is cut off: honest peers finish soon, and those who come back begin as the youngest.
"""

from typing import Final, Protocol

TRUSTING_SHARE: Final = 4
"""Announced sizes are believed while less than this part of the budget is held; above it only bytes that came count."""


class BufferOwner(Protocol):
    """A connection, as the budget sees it."""

    def unwritten_bytes(self) -> int:
        """What waits in this process for the peer to read."""

    def abort_for_memory(self, why: str) -> None:
        """Ends the connection at once."""


class BufferBudget:
    """Bytes of all connections of one server; only rare events come here (a large buffer, a peer that is behind)."""

    __slots__ = (
        "_behind",
        "_limit_bytes",
        "_receiving",
        "_unsent_bytes",
        "disconnected",
        "received_bytes",
        "trusts_peers",
    )

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._receiving: dict[BufferOwner, int] = {}
        self._behind: dict[BufferOwner, None] = {}
        self._unsent_bytes = 0
        self.received_bytes = 0
        """Buffers of large requests that are under way."""
        self.trusts_peers = True
        """Whether a connection gets the whole buffer of a request that is only announced."""
        self.disconnected = 0
        """Connections that were ended for others' sake."""

    @property
    def unsent_bytes(self) -> int:
        """What peers that are behind have not taken."""
        return sum(holder.unwritten_bytes() for holder in self._behind)

    def receives(self, holder: BufferOwner, buffer_bytes: int) -> None:
        """`holder` has a large buffer of this size now; 0: it has none any more."""
        self.received_bytes += buffer_bytes - self._receiving.get(holder, 0)
        if buffer_bytes:
            self._receiving[holder] = buffer_bytes
        else:
            self._receiving.pop(holder, None)
        self.trusts_peers = self.received_bytes < self._limit_bytes // TRUSTING_SHARE
        self._make_room()

    def sends(self, holder: BufferOwner, more_bytes: int) -> None:
        """`holder` is behind, and was sent these."""
        self._behind[holder] = None
        # Peers take bytes without a word, so this is a bound; what is really unsent is counted when the bound is hit.
        self._unsent_bytes += more_bytes
        if self.received_bytes + self._unsent_bytes > self._limit_bytes:
            self._unsent_bytes = self.unsent_bytes
            self._make_room()

    def drained(self, holder: BufferOwner) -> None:
        """`holder` is no longer behind."""
        self._behind.pop(holder, None)

    def forget(self, holder: BufferOwner) -> None:
        """The connection ended."""
        self._behind.pop(holder, None)
        if holder in self._receiving:
            self.receives(holder, 0)

    def _make_room(self) -> None:
        while self.received_bytes + self._unsent_bytes > self._limit_bytes:
            self._unsent_bytes = unsent = self.unsent_bytes
            if self.received_bytes + unsent <= self._limit_bytes:
                return
            receiving = self.received_bytes >= unsent
            oldest = next(iter(self._receiving if receiving else self._behind))
            what = "requests that are half received" if receiving else "answers that nobody reads"
            self._unsent_bytes -= oldest.unwritten_bytes()
            self.disconnected += 1
            oldest.abort_for_memory(f"{what} fill the memory for all connections (maxBufferedBytes)")
            self._behind.pop(oldest, None)
            self.received_bytes -= self._receiving.pop(oldest, 0)
