"""How connections with many requests at hand share the event loop's turns.

One read can hold hundreds of requests, and the event loop reads a busy socket many times before it looks at another.
So nobody gets more than a slice at once: the rest waits here, and a turn of the loop spends a bounded time on all of
those together before it looks at who else has something to say. Those who ask one thing at a time never wait here.
"""

import asyncio
from collections import deque
from time import monotonic
from typing import Final, Protocol

SLICE_S: Final = 0.001
"""What one connection gets before the next one: some dozens of requests, so that their answers share one write."""
TURN_S: Final = 0.005
"""What all of them get in one turn of the loop: this much later at most another peer's request is read."""


class Waiting(Protocol):
    """A connection that has requests at hand."""

    is_waiting: bool
    """Whether it stands in the row; set here."""

    def take_turn(self) -> bool:
        """Handles a slice of them; whether more are left."""


class Turns:
    """The row of one server."""

    __slots__ = ("_began_at", "_is_scheduled", "_row")

    def __init__(self) -> None:
        self._row: deque[Waiting] = deque()
        self._is_scheduled = False
        self._began_at = 0.0

    def is_over(self) -> bool:
        """Whether who has several requests at hand has to wait: others do already, or this turn has been spent."""
        if self._row:
            return True
        now = monotonic()
        if self._began_at:
            return now - self._began_at >= TURN_S
        self._began_at = now
        self._schedule()
        return False

    def wait(self, connection: Waiting) -> None:
        """Has `connection` take its turn after those that are here, with others' reads in between."""
        if not connection.is_waiting:
            connection.is_waiting = True
            self._row.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._began_at = 0.0
        row = self._row
        give_way_at = monotonic() + TURN_S
        while row:
            connection = row.popleft()
            connection.is_waiting = False
            if connection.take_turn():
                connection.is_waiting = True
                row.append(connection)
            if monotonic() >= give_way_at:
                break
        if row:
            self._schedule()
