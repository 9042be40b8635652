"""Connections of one server: limits, idle timeout and shutdown."""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from delaymq.clock import now_ms
from delaymq.protocol.codes import LINK_CODES
from delaymq.protocol.command import Command
from delaymq.server.requests.client_session import ClientSession
from delaymq.throttled_log import ThrottledLogger
from delaymq.transport import ConnectionLimits, RemotingConnection

SERVER_LIMITS: Final = ConnectionLimits(read_while_behind=False)
SWEEPS_PER_TIMEOUT: Final = 4
"""Checks of a connection per idle timeout, so that it is closed at most a quarter too late."""
DRAIN_STEP_S: Final = 0.005
LINK_ROOM: Final = 16
"""Connections beyond the limits that may prove to be links of members of the group."""
LINK_TIMEOUT_S: Final = 5.0
"""Time for this proof."""

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
        self._links = 0
        """Number of connections that are links of members, to which the limits do not apply."""
        self._on_link: Callable[[Any, list[Command]], None] | None = None
        self._unproven: dict[int, str] = {}
        """Connections beyond the limits, oldest first, with the reasons for which they are closed if they are no links.
        """
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._reading_stopped = False

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self) -> None:
        """Start checking for idle connections."""
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(self._idle_s / SWEEPS_PER_TIMEOUT, self._sweep)

    def admit_links(self, on_link: Callable[[Any, list[Command]], None]) -> None:
        """Let members of the group connect although a limit is reached. `on_link` receives their first requests.

        Clients could otherwise use all connections, so that a replica that lost its own could not return.
        """
        self._on_link = on_link

    def opened(self, connection: RemotingConnection) -> None:
        """Accept a new connection, or close it if there are too many."""
        reason = self._excess(connection)
        if not reason:
            self._take(connection)
        elif self._on_link is None:
            self._close_excess(connection, reason)
        else:
            self._await_proof(connection, reason)

    def _excess(self, connection: RemotingConnection) -> str:
        """Return why there are too many connections; empty if there are not."""
        count = len(self._sessions) - self._links - len(self._unproven)
        of_address = self._by_address[_host(connection.remote_address)]
        if count >= self._max_connections:
            return f"there are {count} connections already (maxConnections)"
        if 0 < self._max_per_address <= of_address:
            return f"its address has {of_address} connections already (maxConnectionsPerAddress)"
        if connection.descriptor >= self.descriptor_end:
            return f"the limit on open files allows no more connections than {count} (ulimit -Hn)"
        return ""

    def _close_excess(self, connection: RemotingConnection, reason: str) -> None:
        peer = connection.remote_address
        _throttled.warning("closed the connection of %s: %s", peer, reason, peer=peer)
        self.refused += 1
        connection.abort()

    def _await_proof(self, connection: RemotingConnection, reason: str) -> None:
        """Take a connection beyond the limits, which must prove to be a link before too many others try the same."""
        if len(self._unproven) >= LINK_ROOM:
            self._end_unproven(next(iter(self._unproven)))
        self._unproven[connection.id] = reason
        self._take(connection)
        connection.pass_requests_to(self._only_links)
        asyncio.get_running_loop().call_later(LINK_TIMEOUT_S, self._end_unproven, connection.id)

    def _only_links(self, connection: RemotingConnection, commands: list[Command]) -> None:
        if self._on_link is not None and all(command.code in LINK_CODES for command in commands):
            self._on_link(connection, commands)
        else:
            self._end_unproven(connection.id)

    def _end_unproven(self, session_id: int) -> None:
        reason = self._unproven.pop(session_id, "")
        if reason:
            self._close_excess(self._sessions[session_id].connection, reason)

    def linked(self, session: ClientSession) -> None:
        """Note that a connection has proven to be a link of a member."""
        self._uncount(session.remote_address)
        session.is_link = True
        self._links += 1
        self._unproven.pop(session.id, None)

    def _uncount(self, remote_address: str) -> None:
        host = _host(remote_address)
        self._by_address[host] -= 1
        if self._by_address[host] <= 0:
            del self._by_address[host]

    def _take(self, connection: RemotingConnection) -> None:
        self._by_address[_host(connection.remote_address)] += 1
        session = ClientSession(connection)
        connection.session = session
        self._sessions[session.id] = session
        if self._reading_stopped:
            connection.stop_reading()

    def closed(self, connection: RemotingConnection, error: Exception | None) -> None:
        """Remove a closed connection."""
        session = self._sessions.pop(connection.id, None)
        if session is not None:
            self._unproven.pop(session.id, None)
            if session.is_link:
                self._links -= 1
            else:
                self._uncount(session.remote_address)
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


def _host(address: str) -> str:
    return address.rpartition(":")[0]
