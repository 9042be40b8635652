"""Requests that take several time slices, and the queue of those that need much memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final

from delaymq.broker.broker import Broker
from delaymq.broker.requests.results import Deferred, TimeSliced
from delaymq.protocol.command import Command, Response
from delaymq.server.requests.client_session import ClientSession
from delaymq.server.requests.replies import reply
from delaymq.transport import RemotingConnection

AT_ONCE: Final = 2
"""Maximum concurrent queued requests. Each takes up to 16 MiB, and a connection has at most one of them."""


class LongRequests:
    """Long requests of one server; `defer` takes responses that wait for the disk."""

    def __init__(self, broker: Broker, defer: Callable[[ClientSession, Command, Deferred], None]) -> None:
        self._broker = broker
        self._defer = defer
        self._queue: deque[tuple[RemotingConnection, TimeSliced]] = deque()
        self.under_way = 0
        """Number of queued requests in progress."""

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._queue)

    def begin(
        self,
        connection: RemotingConnection,
        session: ClientSession,
        command: Command,
        work: TimeSliced,
        behind: list[Command],
    ) -> None:
        """Run `work` to completion, immediately or when it leaves the queue, and handle `behind` after it."""
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
        """Run a step; return whether the request is done."""
        began = monotonic()
        result = self._broker.next_step(session, command, work)
        if session.usage is not None:
            session.usage.spent(session, monotonic() - began)
        if result is work:
            return False
        # None: the client has disconnected, or expects no response.
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
            # Otherwise requests of disconnected clients would still be processed.
            work.steps.close()
        self.under_way += 1
        connection.unpark()
