"""The connections of one server: limits on their number, idle ones, and how they end."""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable
from typing import Final

from delaymq.clock import now_ms
from delaymq.server.requests.client_session import ClientSession
from delaymq.throttled_log import ThrottledLogger
from delaymq.transport import ConnectionLimits, RemotingConnection

SERVER_LIMITS: Final = ConnectionLimits(read_while_behind=False)
SWEEPS_PER_TIMEOUT: Final = 4
"""How often within the idle time a connection is looked at; it is closed at most a quarter too late."""
DRAIN_STEP_S: Final = 0.005

_logger = logging.getLogger(__name__)
_refused = ThrottledLogger(_logger, now_ms)


class Sessions:
    """All accepted connections. `on_closed` is called once for each that was taken.

    A connection whose descriptor is `descriptor_end` or above is cut off: those belong to the rest of the process.
    """

    def __init__(
        self,
        max_connections: int,
        idle_ms: int,
        on_closed: Callable[[ClientSession], None],
        *,
        max_per_address: int = 0,
        descriptor_end: int = sys.maxsize,
    ) -> None:
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self.descriptor_end = descriptor_end
        self._by_address: Counter[str] = Counter()
        self.refused = 0
        """Connections that were one too many."""
        self._idle_s = idle_ms / 1000
        self._on_closed = on_closed
        self._sessions: dict[int, ClientSession] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._reading_stopped = False

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self) -> None:
        """Begins to look for idle connections."""
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(self._idle_s / SWEEPS_PER_TIMEOUT, self._sweep)

    def opened(self, connection: RemotingConnection) -> None:
        """Takes a new connection, or cuts it off when there are too many."""
        peer = connection.remote_address
        address = peer.rpartition(":")[0]
        if len(self._sessions) >= self._max_connections:
            text = "%s is cut off: there are %d connections already (maxConnections)"
            _refused.warning(text, peer, len(self._sessions), peer=peer)
        elif 0 < self._max_per_address <= self._by_address[address]:
            text = "%s is cut off: its address has %d connections already (maxConnectionsPerAddress)"
            _refused.warning(text, peer, self._by_address[address], peer=peer)
        elif connection.descriptor >= self.descriptor_end:
            text = "%s is cut off: the limit of open files has no room for more connections than %d (ulimit -Hn)"
            _refused.warning(text, peer, len(self._sessions), peer=peer)
        else:
            self._take(connection, address)
            return
        self.refused += 1
        connection.abort()

    def _take(self, connection: RemotingConnection, address: str) -> None:
        self._by_address[address] += 1
        session = ClientSession(connection)
        connection.session = session
        self._sessions[session.id] = session
        if self._reading_stopped:
            connection.stop_reading()

    def closed(self, connection: RemotingConnection, error: Exception | None) -> None:
        """A connection ended."""
        session = self._sessions.pop(connection.id, None)
        if session is not None:
            address = session.remote_address.rpartition(":")[0]
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
            self._on_closed(session)
            connection.session = None  # else only the garbage collector, which comes rarely, would free both

    def close(self, session_id: int) -> None:
        """Ends one connection."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.connection.close()

    def stop_reading(self) -> None:
        """Takes no requests any more, on no connection."""
        self._reading_stopped = True
        for session in self._sessions.values():
            session.connection.stop_reading()

    async def close_all(self, timeout_s: float) -> None:
        """Ends all connections by a reset, after their peers have taken what was written.

        A reset and not an ordinary end: only that makes clients fail their open requests at once and come back.
        """
        # A producer that goes on sending acknowledges each answer with its next request: there would be no end.
        self.stop_reading()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        waiting = list(self._sessions.values())
        while waiting and loop.time() < give_up_at:
            waiting = [session for session in waiting if session.connection.unsent_bytes()]
            if waiting:
                await asyncio.sleep(DRAIN_STEP_S)
        for session in list(self._sessions.values()):
            session.connection.abort()
        await asyncio.sleep(0)

    def _sweep(self) -> None:
        for session in list(self._sessions.values()):
            if session.connection.is_active:
                session.connection.is_active = False
                session.idle_sweeps = 0
                continue
            session.idle_sweeps += 1
            if session.idle_sweeps >= SWEEPS_PER_TIMEOUT:
                _logger.info("%s was silent for %d s: closed", session.remote_address, int(self._idle_s))
                session.connection.close()
        self.start()
