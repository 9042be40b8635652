"""Fair scheduling of connections with queued requests.

One read can contain hundreds of requests, and the event loop reads a busy socket many times before it serves another.
Therefore a connection gets one time slice at a time. Its remaining requests wait here, and each loop iteration spends a
bounded time on all waiting connections before it reads from others. Peers that send one request at a time never wait.

Time is first divided among shares (an account, or a host before any signature), then among the connections of a share.
The one that has used less goes first. A client with twenty busy connections therefore gets no more than one with a
single connection, and a client that needs less than its part does not wait for one that needs more.
"""

import asyncio
import itertools
from collections.abc import Hashable
from heapq import heappop, heappush
from time import monotonic
from typing import Final, Protocol

SLICE_S: Final = 0.001
"""Time slice of one connection: several dozen requests, whose responses share one write."""
LOOP_SLICE_S: Final = 0.005
"""Time slice of all waiting connections per loop iteration: the maximum delay of another peer's request."""


class Waiting(Protocol):
    """A connection that has queued requests."""

    is_waiting: bool
    """Whether it is queued; set by the queue."""
    share: Hashable
    """Share to which its time is charged."""
    used_s: float
    """Time used within its share, in seconds; set by the queue, and reset to 0 when the share changes."""

    def run_slice(self) -> bool:
        """Handle a time slice of requests; return whether more are left."""


class _Share:
    """Waiting connections of one account or host."""

    __slots__ = ("clock_s", "key", "line", "used_s")

    def __init__(self, key: Hashable, used_s: float, clock_s: float) -> None:
        self.key = key
        self.used_s = used_s
        self.clock_s = clock_s
        """Time used by the connection that had the last slice: new connections start with it."""
        self.line: list[tuple[float, int, Waiting]] = []


class FairQueue:
    """Waiting connections of one server."""

    __slots__ = ("_began_at", "_clock_s", "_count", "_is_scheduled", "_latest_s", "_line", "_shares")

    def __init__(self) -> None:
        self._line: list[tuple[float, int, _Share]] = []
        self._shares: dict[Hashable, _Share] = {}
        """Shares with waiting connections, and the share whose connection is running."""
        self._clock_s = 0.0
        """Time used by the share that had the last slice: a returning share starts with it."""
        self._latest_s = 0.0
        """Maximum time used by any connection: all connections of a new share start with it."""
        self._count = itertools.count()
        """Order of arrival, to break ties."""
        self._is_scheduled = False
        self._began_at = 0.0

    def is_exhausted(self) -> bool:
        """Whether a connection with several requests must wait, because others do or this iteration's time is spent."""
        if self._line:
            return True
        now = monotonic()
        if self._began_at:
            return now - self._began_at >= LOOP_SLICE_S
        self._began_at = now
        self._schedule()
        return False

    def wait(self, connection: Waiting) -> None:
        """Run a slice of `connection` after those that wait already; others are read from in between."""
        if not connection.is_waiting:
            self._enter(connection)
        self._schedule()

    def _enter(self, connection: Waiting) -> None:
        connection.is_waiting = True
        share = self._shares.get(connection.share)
        if share is None:
            share = self._shares[connection.share] = _Share(connection.share, self._clock_s, self._latest_s)
            heappush(self._line, (share.used_s, next(self._count), share))
        connection.used_s = max(connection.used_s, share.clock_s)
        heappush(share.line, (connection.used_s, next(self._count), connection))

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._began_at = 0.0
        now = monotonic()
        yield_at = now + LOOP_SLICE_S
        while self._line:
            now = self._run_one(now)
            if now >= yield_at:
                break
        if self._line:
            self._schedule()

    def _run_one(self, began: float) -> float:
        """Run one connection's slice; return the time at its end."""
        share = heappop(self._line)[2]
        self._clock_s = share.used_s
        connection = heappop(share.line)[2]
        share.clock_s = connection.used_s
        connection.is_waiting = False
        has_more = connection.run_slice()
        now = monotonic()
        share.used_s += now - began
        connection.used_s += now - began
        self._latest_s = max(self._latest_s, connection.used_s)
        if has_more and not connection.is_waiting:
            self._enter(connection)
        if share.line:
            heappush(self._line, (share.used_s, next(self._count), share))
        else:
            del self._shares[share.key]
        return now
