"""Admission control for TLS handshakes: limits their number and evicts stalled ones, so that no network starves others.

Handshakes are counted by the network of the peer. Networks take turns; within a network, the newest handshake is first,
because its client is the most likely to be still connected. When there is no capacity, the oldest handshake of the
network with most of them is evicted for a waiting one: soon if none of them progresses, late if clients are only slow,
as when a thousand of them start on one machine. The cost of an operation is independent of the number of waiting peers.
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
"""Maximum number of running handshakes, of up to 100 KB each. After a restart all clients reconnect; the rest waits."""
MAX_PER_NETWORK: Final = 128
"""Limit per network; the remaining capacity is reserved for other networks."""
GIVES_WAY_S: Final = 5.0
"""Age in seconds at which a running handshake can be evicted for a waiting one."""
STUCK_S: Final = 0.2
"""If no handshake of a network starts for this time while some wait, the running ones count as stalled."""
GIVES_WAY_STUCK_S: Final = 2.0
"""Age in seconds at which a stalled handshake can be evicted; waiting clients give up after 3 s."""
WAIT_S: Final = 10.0
"""Maximum waiting time of a handshake."""
EXPIRED_AT_ONCE: Final = 16


@dataclass(slots=True, eq=False)
class Handshake:
    """One connection whose peer requests TLS."""

    connection: UpgradableConnection
    received: bytes
    """Bytes received so far."""
    since: float
    """Loop time of its arrival; of a running handshake, the time from which it depends on its peer."""

    @property
    def network(self) -> bytes:
        """Network of the peer, as returned by network_of()."""
        return network_of(self.connection.remote_host)


class HandshakeQueue:
    """Handshakes of one server. Times are those of the event loop, in seconds."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, deque[Handshake]] = {}
        """By network, in the order of turns; the newest handshake of each is last."""
        self._under_way: dict[bytes, dict[Handshake, None]] = {}
        """By network; the oldest handshake of each is first."""
        self._began_at: dict[bytes, float] = {}
        """By network with running handshakes: start of the newest one."""
        self.waiting = 0
        self.under_way = 0

    def wait(self, handshake: Handshake) -> None:
        """Add a new handshake."""
        self._waiting.setdefault(handshake.network, deque()).append(handshake)
        self.waiting += 1

    def expired(self, now: float) -> list[Handshake]:
        """Remove and return some handshakes that have waited too long."""
        gone: list[Handshake] = []
        for network, row in list(islice(self._waiting.items(), 2)):
            while row and now - row[0].since > WAIT_S and len(gone) < EXPIRED_AT_ONCE:
                gone.append(row.popleft())
            if not row:
                del self._waiting[network]
        self.waiting -= len(gone)
        return gone

    def next(self, now: float) -> tuple[Handshake, Handshake | None] | float:
        """Return the handshake to start and the one to evict for it, or the seconds until one can start."""
        wait_s = GIVES_WAY_S
        # At most one network is at its limit, so the second one can start if there is any capacity.
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
        """Remove a running handshake that ended; it may have been evicted before."""
        of_network = self._under_way.get(handshake.network)
        if of_network is not None and handshake in of_network:
            del of_network[handshake]
            self.under_way -= 1
            if not of_network:
                del self._under_way[handshake.network], self._began_at[handshake.network]

    def drop_waiting(self) -> None:
        """Remove all waiting handshakes."""
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
