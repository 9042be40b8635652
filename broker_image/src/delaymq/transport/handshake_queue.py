"""Admission of TLS handshakes: bounds those under way, and evicts stalled ones so that no network can starve others.

Handshakes are counted by the network that they come from. Networks have their turns one after the other; within one the
newest is first, since its client is the likeliest to be there still. When there is no room, the oldest handshake of the
network that has most of them gives way to who waits: soon where nothing moves, late where clients are only slow, as
when a thousand of them start on one machine. All of it takes the same time however many wait.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from delaymq.message.ids import network_of

if TYPE_CHECKING:
    from delaymq.transport.tls_upgrade import UpgradableConnection

MAX_HANDSHAKES: Final = 256
"""Under way at a time: each holds up to 100 KB. After a restart all clients come at once; the others wait."""
MAX_PER_NETWORK: Final = 128
"""The rest is room for clients from elsewhere, whatever one network does."""
GIVES_WAY_S: Final = 5.0
"""What has been under way for this long gives way to who waits."""
STUCK_S: Final = 0.2
"""When no handshake of a network began for this long, though some wait, those under way are none of clients at work."""
GIVES_WAY_STUCK_S: Final = 2.0
"""What has been under way for this long gives way then; a client that waits gives up after 3 s."""
WAIT_S: Final = 10.0
"""How long one may wait for its turn."""
EXPIRED_AT_ONCE: Final = 16


@dataclass(slots=True, eq=False)
class Handshake:
    """One connection whose peer wants TLS."""

    connection: UpgradableConnection
    received: bytes
    """What came of it already."""
    since: float
    """The loop's time at which it came; when it is under way, from which on it depends on its peer."""

    @property
    def network(self) -> bytes:
        """The peer's, as network_of() tells it."""
        return network_of(self.connection.remote_host)


class HandshakeQueue:
    """The handshakes of one server. Times are the loop's, in seconds."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, deque[Handshake]] = {}
        """By network, in the order of their turns; the newest of each at the end."""
        self._under_way: dict[bytes, dict[Handshake, None]] = {}
        """By network, the oldest of each at the beginning."""
        self._began_at: dict[bytes, float] = {}
        """By network that has some under way: when the last of them began."""
        self.waiting = 0
        self.under_way = 0

    def wait(self, handshake: Handshake) -> None:
        """Takes one that has come."""
        self._waiting.setdefault(handshake.network, deque()).append(handshake)
        self.waiting += 1

    def expired(self, now: float) -> list[Handshake]:
        """Some that have waited too long; they are gone from here."""
        gone: list[Handshake] = []
        for network, row in list(islice(self._waiting.items(), 2)):
            while row and now - row[0].since > WAIT_S and len(gone) < EXPIRED_AT_ONCE:
                gone.append(row.popleft())
            if not row:
                del self._waiting[network]
        self.waiting -= len(gone)
        return gone

    def next(self, now: float) -> tuple[Handshake, Handshake | None] | float:
        """The one that begins now and the one that must end for it; or for how many seconds none can begin."""
        wait_s = GIVES_WAY_S
        # At most one network is at its limit, so that the second has room if there is any.
        for network in islice(self._waiting, 2):
            oldest = self._in_the_way_of(network)
            if oldest is not None:
                stuck_at = self._began_at.get(network, -math.inf) + STUCK_S
                gives_way_at = min(oldest.since + GIVES_WAY_S, max(oldest.since + GIVES_WAY_STUCK_S, stuck_at))
                if now < gives_way_at:
                    wait_s = min(wait_s, gives_way_at - now)
                    continue
                self.ended(oldest)
            return self._begin(network, now), oldest
        return wait_s

    def ended(self, handshake: Handshake) -> None:
        """One that was under way is over; also if it gave way before."""
        of_network = self._under_way.get(handshake.network)
        if of_network is not None and handshake in of_network:
            del of_network[handshake]
            self.under_way -= 1
            if not of_network:
                del self._under_way[handshake.network], self._began_at[handshake.network]

    def drop_waiting(self) -> None:
        """Nobody's turn comes any more."""
        self._waiting.clear()
        self.waiting = 0

    def _in_the_way_of(self, network: bytes) -> Handshake | None:
        own = self._under_way.get(network, {})
        if len(own) >= MAX_PER_NETWORK:
            return next(iter(own))
        if self.under_way >= MAX_HANDSHAKES:
            largest = max(self._under_way.values(), key=len)
            return next(iter(largest))
        return None

    def _begin(self, network: bytes, now: float) -> Handshake:
        row = self._waiting.pop(network)
        handshake = row.pop()
        self.waiting -= 1
        if row:
            self._waiting[network] = row
        handshake.since = math.inf
        self._under_way.setdefault(network, {})[handshake] = None
        self._began_at[network] = now
        self.under_way += 1
        return handshake
