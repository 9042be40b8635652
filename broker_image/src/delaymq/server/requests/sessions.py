"""Connections of one server: limits, idle timeout and shutdown."""

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
"""Checks of a connection per idle timeout, so that it is closed at most a quarter too late."""
DRAIN_STEP_S: Final = 0.005

_logger = logging.getLogger(__name__)
_throttled = ThrottledLogger(_logger, now_ms)


class Sessions:
    """All accepted connections. `on_closed` is called once for each accepted connection.

    Connections with a descriptor of `descriptor_end` or above are closed, as these are reserved for other uses.
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
        """Number of connections rejected because of limits."""
        self._idle_s = idle_ms / 1000
        self._on_closed = on_closed
        self._sessions: dict[int, ClientSession] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._reading_stopped = False

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self) -> None:
        """Start checking for idle connections."""
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(self._idle_s / SWEEPS_PER_TIMEOUT, self._sweep)

    def opened(self, connection: RemotingConnection) -> None:
        """Accept a new connection, or close it if there are too many."""
        peer = connection.remote_address
        address = peer.rpartition(":")[0]
        if len(self._sessions) >= self._max_connections:
            text = "closed the connection of %s: there are %d connections already (maxConnections)"
            _throttled.warning(text, peer, len(self._sessions), peer=peer)
        elif 0 < self._max_per_address <= self._by_address[address]:
            text = "closed the connection of %s: its address has %d connections already (maxConnectionsPerAddress)"
            _throttled.warning(text, peer, self._by_address[address], peer=peer)
        elif connection.descriptor >= self.descriptor_end:
            text = (
                "closed the connection of %s: the limit on open files allows no more connections than %d (ulimit -Hn)"
            )
            _throttled.warning(text, peer, len(self._sessions), peer=peer)
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
        """Remove a closed connection."""
        session = self._sessions.pop(connection.id, None)
        if session is not None:
            address = session.remote_address.rpartition(":")[0]
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
            self._on_closed(session)
            connection.session = None  # breaks a cycle that only a rare garbage collection would free

    def close(self, session_id: int) -> None:
        """Close one connection."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.connection.close()

    def stop_reading(self) -> None:
        """Stop reading requests on all connections."""
        self._reading_stopped = True
        for session in self._sessions.values():
            session.connection.stop_reading()

    async def close_all(self, timeout_s: float) -> None:
        """Reset all connections, after their peers have received the written data.

        Only a reset makes clients fail their open requests immediately and reconnect.
        """
        # A sending producer acknowledges each response with its next request, so waiting would never end.
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
            if session.connection.is_active or session.is_link:
                session.connection.is_active = False
                session.idle_sweeps = 0
                continue
            session.idle_sweeps += 1
            if session.idle_sweeps >= SWEEPS_PER_TIMEOUT:
                _logger.info(
                    "closed the connection of %s, which was idle for %d s", session.remote_address, int(self._idle_s)
                )
                session.connection.close()
        self.start()
