"""Fair scheduling of connections with several requests at hand.

One read can hold hundreds of requests, and the event loop reads a busy socket many times before it looks at another.
So a connection gets no more than a slice at once: the rest waits here, and a turn of the loop spends a bounded time on
all waiting connections together before it reads from others. A peer that asks one thing at a time never waits here.

Time is divided among shares first (an account, or a host while nobody has signed), then among the connections of a
share. Whoever has used less goes first, so a client with twenty busy connections gets no more than one with a single
connection, and a client that needs less than its part does not wait for one that needs more.
"""

import asyncio
import itertools
from collections.abc import Hashable
from heapq import heappop, heappush
from time import monotonic
from typing import Final, Protocol

SLICE_S: Final = 0.001
"""What one connection gets before the next one: some dozens of requests, so that their answers share one write."""
LOOP_SLICE_S: Final = 0.005
"""What all of them get in one turn of the loop: this much later at most another peer's request is read."""


class Waiting(Protocol):
    """A connection that has requests at hand."""

    is_waiting: bool
    """Whether it is queued; set here."""
    share: Hashable
    """Whose time it uses."""
    used_s: float
    """What it has used within its share, in seconds; set here, and to 0 when the share changes."""

    def run_slice(self) -> bool:
        """Handles a slice of them; whether more are left."""


class _Share:
    """The waiting connections of one account or host."""

    __slots__ = ("clock_s", "key", "line", "used_s")

    def __init__(self, key: Hashable, used_s: float, clock_s: float) -> None:
        self.key = key
        self.used_s = used_s
        self.clock_s = clock_s
        """What the connection that had the last slice had used: newcomers begin there."""
        self.line: list[tuple[float, int, Waiting]] = []


class FairQueue:
    """The waiting connections of one server."""

    __slots__ = ("_began_at", "_clock_s", "_count", "_is_scheduled", "_latest_s", "_line", "_shares")

    def __init__(self) -> None:
        self._line: list[tuple[float, int, _Share]] = []
        self._shares: dict[Hashable, _Share] = {}
        """Those with waiting connections, and the one whose connection has its slice."""
        self._clock_s = 0.0
        """What the share that had the last slice had used: one that comes back begins there."""
        self._latest_s = 0.0
        """The most that any connection has used: a new share's connections begin there, all alike."""
        self._count = itertools.count()
        """Breaks ties in the order of arrival."""
        self._is_scheduled = False
        self._began_at = 0.0

    def is_exhausted(self) -> bool:
        """Whether a connection with several requests at hand has to wait: others do, or this turn has been spent."""
        if self._line:
            return True
        now = monotonic()
        if self._began_at:
            return now - self._began_at >= LOOP_SLICE_S
        self._began_at = now
        self._schedule()
        return False

    def wait(self, connection: Waiting) -> None:
        """Has `connection` take its turn when those before it have, with others' reads in between."""
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
        """One connection's slice; the time at its end."""
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
