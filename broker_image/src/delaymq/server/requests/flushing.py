"""Flushing of the log: at intervals, or immediately for waiting producers, with group commit."""

import asyncio
import logging
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from delaymq.broker.requests.results import Deferred, ReplicaWait
from delaymq.clock import now_ms
from delaymq.protocol.command import Command, Response
from delaymq.server.requests.client_session import ClientSession
from delaymq.server.requests.confirmation import Answer, BothWaits, WaitQueue
from delaymq.server.requests.replies import with_code
from delaymq.server.resources import started
from delaymq.throttled_log import ThrottledLogger
from delaymq.transport import RemotingConnection

if TYPE_CHECKING:
    from delaymq.store.message_store import MessageStore

RETRY_S: Final = 1.0
"""Delay of the retry after a failed sync."""
MAX_WAITING: Final = 10_000
"""Default maximum of waiting requests, as RocketMQ's sendThreadPoolQueueCapacity."""
FLUSH_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)

Reply = Callable[[ClientSession, Command, Response], None]

_logger = logging.getLogger(__name__)
_throttled = ThrottledLogger(_logger, now_ms)


class FlushTimes:
    """Histogram of sync durations, for the metrics."""

    def __init__(self) -> None:
        self.counts = [0] * (len(FLUSH_BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Record the duration of a sync."""
        self.sum_s += seconds
        index = next((at for at, bound in enumerate(FLUSH_BUCKETS_S) if seconds <= bound), len(FLUSH_BUCKETS_S))
        self.counts[index] += 1


class Flushing:
    """Runs one sync at a time in a separate thread; everything else runs on the loop's thread.

    `on_confirmed` is called after each sync, when more of the log has become readable.
    """

    def __init__(
        self, store: "MessageStore", interval_ms: Callable[[], int], reply: Reply, on_confirmed: Callable[[], None]
    ) -> None:
        self._store = store
        self._interval_ms = interval_ms
        self._reply = reply
        self._on_confirmed = on_confirmed
        self._waiting = WaitQueue(lambda: store.flushed_offset)
        self._for_replicas = WaitQueue(lambda: store.replicated_offset)
        self.tables_reached: Callable[[], int] = lambda: 0
        """Returns the number of the newest change of a table that all required replicas have."""
        self.of_tables = WaitQueue(lambda: self.tables_reached())
        """Responses that wait until replicas have changes of tables."""
        self._corked: list[RemotingConnection] | None = None
        """While responses are released: connections whose responses are combined."""
        self._executor = started(ThreadPoolExecutor(1, "flush"), 1)
        self._in_flight: asyncio.Future[None] | None = None
        self._interval_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._begin_soon = False
        self._again = False
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        self.times = FlushTimes()
        self.failures = 0
        self.in_sync = 2
        """Number of members in sync, including this one."""
        self.min_in_sync = 2
        """Number of members in sync below which no send is confirmed."""
        self.busy_after_s = math.inf
        """Duration of an awaited sync, or of its failures, after which the disk counts as busy."""
        self.busy_at = math.inf
        """Loop time from which the disk counts as busy."""
        self.capacity = MAX_WAITING
        """Maximum waiting requests; further ones are rejected before they are stored."""

    def start(self) -> None:
        """Start the periodic syncs."""
        self._interval_timer = self._loop.call_later(self._interval_ms() / 1000, self._tick)

    def wait(self, session: ClientSession, request: Command, deferred: Deferred) -> None:
        """Answer `request` when disk or replicas have the log up to the offset of `deferred`, or on a timeout."""
        request.body = b""  # already stored; with a slow disk, thousands of requests wait here
        self._wait(partial(self._respond, session, request), deferred)

    def wait_together(self, connection: RemotingConnection, responses: bytes, count: int, deferred: Deferred) -> None:
        """Send encoded responses to `count` requests as `wait` does, with the code of the response of `deferred`."""

        def answer(response: Response) -> None:
            self._combine(connection)
            connection.send(responses if response is deferred.response else with_code(responses, response.code))

        self._wait(answer, deferred, count)

    async def outcome(self, deferred: Deferred) -> Response:
        """Return the response of `deferred` when it no longer waits, or the one of its timeout."""
        outcome: asyncio.Future[Response] = self._loop.create_future()

        def answer(response: Response) -> None:
            if not outcome.done():
                outcome.set_result(response)

        self._wait(answer, deferred)
        return await outcome

    def _respond(self, session: ClientSession, request: Command, response: Response) -> None:
        self._combine(session.connection)
        self._reply(session, request, response)

    def _combine(self, connection: RemotingConnection) -> None:
        """Let the responses that a connection gets now share a write, for which a producer wakes up only once."""
        if self._corked is not None and connection.cork():
            self._corked.append(connection)

    def _wait(self, answer: Answer, deferred: Deferred, count: int = 1) -> None:
        if deferred.of_tables:
            self.of_tables.add(answer, deferred.until, deferred.timeout_ms, lambda: deferred.response, deferred.late)
            return
        replicas = deferred.replicas
        if replicas is not None:
            by_replicas = answer
            if deferred.waits_for_flush:
                both = BothWaits(answer, deferred)
                answer, by_replicas = both.flushed, both.replicated
            respond = partial(self._replicated_response, deferred, replicas)
            self._for_replicas.add(by_replicas, deferred.until, replicas.timeout_ms, respond, replicas.late, count)
            if not deferred.waits_for_flush:
                return
        on_disk = deferred.timeout_ms, lambda: deferred.response, deferred.late
        if self._waiting.add(answer, deferred.until, *on_disk, count):
            self.request()

    def _replicated_response(self, deferred: Deferred, replicas: ReplicaWait) -> Response:
        """Return the response when all required replicas have the log: these may be too few by then."""
        if self.in_sync >= max(self.min_in_sync, 2):
            return deferred.response
        return replicas.alone if self.in_sync <= 1 else replicas.late

    @property
    def awaits_tables(self) -> bool:
        """Whether responses wait until replicas have changes of tables."""
        return bool(self.of_tables)

    @property
    def waiting(self) -> int:
        """Number of requests waiting for the disk or for replicas."""
        return max(len(self._waiting), len(self._for_replicas))

    def replicated(self) -> None:
        """Answer the requests that waited for replicas. Call it when the store's replicated offset has changed."""
        self._release(self._for_replicas)

    def request(self) -> None:
        """Request a sync soon; a sync in progress is followed by another one."""
        if self._stopped:
            return
        if self._in_flight is not None:
            self._again = True
        elif not self._begin_soon and self._retry_timer is None:
            # At the end of this loop iteration, to include the sends of other connections.
            self._begin_soon = True
            self._loop.call_soon(self._begin)

    async def flush(self) -> None:
        """Sync everything that is in the log now, and answer the waiting requests."""
        end = self._store.end_offset
        while self._store.flushed_offset < end:
            failures = self.failures
            self._begin()
            if self._in_flight is None:
                return
            await asyncio.shield(self._in_flight)
            if self.failures > failures:
                return

    async def stop(self) -> None:
        """Sync a last time, and answer the requests that still wait as late."""
        if self._interval_timer is not None:
            self._interval_timer.cancel()
        await self.flush()
        self._stopped = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._waiting.stop()
        self._for_replicas.stop()
        self.of_tables.stop()
        self._executor.shutdown(wait=True)

    def _tick(self) -> None:
        self.start()
        if self._store.flushed_offset < self._store.end_offset:
            self._begin()

    def _begin(self) -> None:
        self._begin_soon = False
        if self._in_flight is not None or self._stopped:
            return
        task = self._store.flush_task()
        if task is None:
            self._release(self._waiting)
            return
        began = self._loop.time()
        if self._waiting and self.busy_at == math.inf:
            self.busy_at = began + self.busy_after_s
        running = self._loop.run_in_executor(self._executor, task.run)
        self._in_flight = self._loop.create_future()

        def ended(done: "asyncio.Future[None]") -> None:
            error: BaseException | None
            try:
                error = done.exception() or task.finish()
            except Exception as failure:
                error = failure
            self.times.add(self._loop.time() - began)
            finished, self._in_flight = self._in_flight, None
            if error is not None:
                self._failed(error)
            else:
                self.busy_at = math.inf
            if finished is not None and not finished.done():
                finished.set_result(None)
            self._release(self._waiting)
            again, self._again = self._again, False
            if (self._waiting or again) and self._retry_timer is None:
                self._begin()

        running.add_done_callback(ended)

    def _failed(self, error: BaseException) -> None:
        self.failures += 1
        if self._store.failure is not None:
            _logger.error("messages are no longer stored: %s", self._store.failure)
            return
        _throttled.error("cannot sync the log to disk, retrying in %g s: %s", RETRY_S, error)
        if self._retry_timer is None:
            self._retry_timer = self._loop.call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self._begin()

    def _release(self, queue: WaitQueue) -> None:
        if queue:
            self._corked = corked = list[RemotingConnection]()
            try:
                queue.release()
            finally:
                self._corked = None
                for connection in corked:
                    connection.uncork()
        self._on_confirmed()
