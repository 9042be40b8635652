"""Memory budget shared by all connections of a server: partially received requests and unsent responses.

Limits per connection are not enough: a thousand peers that each announce a large request and stop, or that each request
much and read nothing, would use the sum of the limits. Above the budget, the connection that has held memory for the
longest time is disconnected. Well-behaved peers finish soon, and peers that reconnect start as the newest.
"""

from typing import Final, Protocol

TRUSTING_SHARE: Final = 4
"""Divisor: announced sizes are trusted up to this part of the budget; above it, only received bytes count."""


class BufferOwner(Protocol):
    """Interface of a connection for the budget."""

    def unwritten_bytes(self) -> int:
        """Return the number of bytes in this process that the peer has not read."""

    def abort_for_memory(self, why: str) -> None:
        """Abort the connection immediately."""


class BufferBudget:
    """Buffered bytes of all connections of one server. Called only for rare events: large buffers and slow peers."""

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
        """Size of the buffers of large requests in transfer."""
        self.trusts_peers = True
        """Whether a connection gets the full buffer of a request that is only announced."""
        self.disconnected = 0
        """Number of connections disconnected to free memory for others."""

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that slow peers have not read."""
        return sum(holder.unwritten_bytes() for holder in self._behind)

    def receives(self, holder: BufferOwner, buffer_bytes: int) -> None:
        """Set the size of a connection's large buffer; 0: it has none."""
        self.received_bytes += buffer_bytes - self._receiving.get(holder, 0)
        if buffer_bytes:
            self._receiving[holder] = buffer_bytes
        else:
            self._receiving.pop(holder, None)
        self.trusts_peers = self.received_bytes < self._limit_bytes // TRUSTING_SHARE
        self._make_room()

    def sends(self, holder: BufferOwner, more_bytes: int) -> None:
        """Count bytes sent to a connection whose peer is behind."""
        self._behind[holder] = None
        # An upper bound, because reads of the peer cause no event; at the limit, the exact value is computed.
        self._unsent_bytes += more_bytes
        if self.received_bytes + self._unsent_bytes > self._limit_bytes:
            self._unsent_bytes = self.unsent_bytes
            self._make_room()

    def drained(self, holder: BufferOwner) -> None:
        """Note that a connection's peer is no longer behind."""
        self._behind.pop(holder, None)

    def forget(self, holder: BufferOwner) -> None:
        """Remove a connection that ended."""
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
            what = "partially received requests" if receiving else "unread responses"
            self._unsent_bytes -= oldest.unwritten_bytes()
            self.disconnected += 1
            oldest.abort_for_memory(f"{what} fill the memory for all connections (maxBufferedBytes)")
            self._behind.pop(oldest, None)
            self.received_bytes -= self._receiving.pop(oldest, 0)
