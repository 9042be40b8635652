"""Requests that take several turns of the loop, and the queue of those that need much memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from delaymq.broker.broker import Broker
from delaymq.broker.results import Deferred, TimeSliced
from delaymq.protocol.command import Command, Response
from delaymq.server.requests.client_session import ClientSession
from delaymq.server.requests.replies import reply
from delaymq.transport import RemotingConnection

AT_ONCE: Final = 2
"""Requests of the row that are under way at once. Each fills up to 16 MiB, and one connection has one of them."""


class LongRequests:
    """Those of one server. `defer` takes an answer that waits for the disk."""

    def __init__(self, broker: Broker, defer: Callable[[ClientSession, Command, Deferred], None]) -> None:
        self._broker = broker
        self._defer = defer
        self._queue: deque[tuple[RemotingConnection, TimeSliced]] = deque()
        self.under_way = 0
        """Requests of the row that have begun and not ended."""

    def __len__(self) -> int:
        """Requests that wait in the row."""
        return len(self._queue)

    def begin(
        self,
        connection: RemotingConnection,
        session: ClientSession,
        command: Command,
        work: TimeSliced,
        behind: list[Command],
    ) -> None:
        """Has `work` done to its end, and `behind` handled after it; at once or when it is its turn in the row."""
        step = partial(self._next_step, session, command, work)
        if not work.queued:
            connection.finish_in_slices(step, behind)
        elif self.under_way < AT_ONCE:
            self.under_way += 1
            connection.finish_in_slices(partial(self._counted, step), behind)
        else:
            self._queue.append((connection, work))
            connection.finish_in_slices(partial(self._counted, step), behind, parked=True)

    def _next_step(self, session: ClientSession, command: Command, work: TimeSliced) -> bool:
        """Whether the request is done."""
        result = self._broker.next_step(session, command, work)
        if result is work:
            return False
        # None: the client has left, or wants no answer.
        if type(result) is Response:
            reply(session, command, result)
        elif type(result) is Deferred:
            self._defer(session, command, result)
        return True

    def _counted(self, step: Callable[[], bool]) -> bool:
        is_done = True
        try:
            is_done = step()
        finally:
            if is_done:
                self.under_way -= 1
                if self._queue:
                    self._begin_next()
        return is_done

    def _begin_next(self) -> None:
        connection, work = self._queue.popleft()
        if connection.peer_has_closed:
            # Else what clients asked for that come and go would be done for nobody, one after the other.
            work.steps.close()
        self.under_way += 1
        connection.unpark()
