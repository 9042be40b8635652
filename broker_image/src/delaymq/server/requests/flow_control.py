"""Flow control: rejects requests that waited too long, because a send stored after its timeout becomes a duplicate.

One event loop serves all requests, so requests do not queue for threads. A request waits in the kernel while the loop
is blocked (by a page fault of the log, or a suspended machine), on its connection while the peer does not read its
responses, and, for a stored send, until the disk confirms it. The request path contains only one comparison of times;
the kernel is queried for the actual age of the bytes only if it may be too high.

Waiting in the kernel leads to a rejection only above `osPageCacheBusyTimeOutMills` (1 s), regardless of the request's
limit: pauses of some hundred milliseconds are common, RocketMQ does not reject requests for them, and producers time
out later (3 s).
"""

import logging
import math
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from delaymq.clock import now_ms
from delaymq.config import BrokerConfig
from delaymq.protocol.codes import PULL_CODES, RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.server.jobs.background import Job
from delaymq.server.requests.client_session import ClientSession
from delaymq.server.requests.flushing import Flushing, Reply
from delaymq.throttled_log import ThrottledLogger
from delaymq.transport import RemotingConnection

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

TICK_MS: Final = 200
"""Interval of the loop's ticks; a request that waited longer cannot have arrived after the last tick."""
NOTICED_S: Final = 0.02
"""A tick this late means that the loop was blocked; until the next one, every read is checked."""

REJECTED: Final = "[REJECTREQUEST]system busy, start flow control for a while"
OVERLOADED: Final = "[OVERLOAD]system busy, start flow control for a while"
_CLEANED: Final = "broker busy, start flow control for a while, period in queue: %dms, size of queue: %d"

_SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)

_logger = logging.getLogger(__name__)
_throttled = ThrottledLogger(_logger, now_ms)


class FlowControl:
    """Rejects overdue requests with `reject_stale`, on the loop's thread. Times are monotonic seconds."""

    def __init__(
        self,
        broker: "Broker",
        flushing: Flushing,
        reply: Reply,
        *,
        clock: Callable[[], float] = time.monotonic,
        age_s: Callable[[RemotingConnection], float] = RemotingConnection.last_bytes_age_s,
    ) -> None:
        self._broker = broker
        self._flushing = flushing
        self._reply = reply
        self._clock = clock
        self._age_s = age_s
        self._has_begun = False
        self._tick_due = math.inf
        self._alive_at = clock()
        self._suspect_all = False
        self._store_blocked = False
        self.suspicious_at = math.inf
        """Time from which the loop may have been blocked for too long."""
        self.patience_s = math.inf
        """Time for which a connection may defer requests before they must be checked."""
        self.blocked_s = 0.0
        """A loop iteration that handled sends for longer than this was blocked by the store."""
        self.refused: dict[str, int] = {}
        """Number of rejected requests by reason."""
        self.apply(broker.config)

    def apply(self, config: BrokerConfig) -> None:
        """Apply a changed configuration."""
        send_s = config.wait_time_mills_in_send_queue / 1000
        self._limits_s: dict[int, float] = dict.fromkeys(_SENDS, send_s)
        self._limits_s |= dict.fromkeys(PULL_CODES, config.wait_time_mills_in_pull_queue / 1000)
        self._limits_s[RequestCode.HEART_BEAT] = config.wait_time_mills_in_heartbeat_queue / 1000
        self._limits_s[RequestCode.END_TRANSACTION] = config.wait_time_mills_in_transaction_queue / 1000
        shortest_s = min(self._limits_s.values())
        self._cleans = config.broker_fast_failure_enable
        self.patience_s = shortest_s if self._cleans else math.inf
        self._capacity = config.send_thread_pool_queue_capacity
        self.blocked_s = config.os_page_cache_busy_time_out_mills / 1000
        self._stall_s = max(shortest_s, self.blocked_s)
        self._flushing.busy_after_s = self.blocked_s
        self._flushing.capacity = self._capacity
        self._watch()

    def begin(self) -> None:
        """Start flow control after startup, whose loading of libraries blocks the loop without overload."""
        self._has_begun = True
        self._tick_due = math.inf
        self.tick()

    def job(self) -> Job:
        """Return the background job of the ticks."""
        return Job(name="loop tick", interval_ms=lambda: TICK_MS, run=self.tick)

    def tick(self) -> None:
        """Record that the loop runs; call it every TICK_MS."""
        now = self._clock()
        self._suspect_all = now - self._tick_due >= NOTICED_S
        if not self._suspect_all:
            self._store_blocked = False
        self._tick_due = now + TICK_MS / 1000
        self._alive_at = now
        self._watch()

    def _watch(self) -> None:
        if not (self._cleans and self._has_begun):
            self.suspicious_at = math.inf
        elif self._suspect_all:
            self.suspicious_at = 0.0
        else:
            self.suspicious_at = self._alive_at + self._stall_s

    def note_stall(self, codes: Collection[int]) -> None:
        """Record that requests took longer than `blocked_s`, so that rejections of later requests name the store."""
        self._store_blocked = not _SENDS.isdisjoint(codes)
        self._suspect_all = True
        self._watch()

    def reject_stale(self, session: ClientSession, commands: list[Command], now: float) -> list[Command]:
        """Return the commands to process; the others have been answered with 2 (SYSTEM_BUSY)."""
        in_kernel_s = deferred_s = 0.0
        if self._cleans:
            connection = session.connection
            if now >= self.suspicious_at:
                in_kernel_s = self._age_s(connection)
            if connection.deferred_since:
                deferred_s = now - connection.deferred_since
        flushing = self._flushing
        disk_hangs = now >= flushing.busy_at
        room = self._capacity - flushing.waiting if self._broker.answers_wait else len(commands)
        kept = []
        for index, command in enumerate(commands):
            sends = command.code in _SENDS
            limit_s = self._limits_s.get(command.code, math.inf)
            if deferred_s >= limit_s or in_kernel_s >= max(limit_s, self.blocked_s):
                queued = len(commands) - index - 1 + flushing.waiting
                self._refuse_old(session, command, max(in_kernel_s, deferred_s), queued)
            elif sends and disk_hangs:
                self._refuse(session, command, "rejectrequest", REJECTED)
            elif sends and room <= 0:
                self._refuse(session, command, "overload", OVERLOADED)
            else:
                room -= sends
                kept.append(command)
        return kept

    def refuse_send(self, peer: str) -> str | None:
        """Return the remark with which a send that did not wait is rejected now, and count it; None: it is accepted.

        `peer` is the client's address, for the log.
        """
        flushing = self._flushing
        if self._clock() >= flushing.busy_at:
            reason, remark = "rejectrequest", REJECTED
        elif self._broker.answers_wait and flushing.waiting >= self._capacity:
            reason, remark = "overload", OVERLOADED
        else:
            return None
        self._count(RequestCode.SEND_MESSAGE_V2, peer, reason, remark)
        return remark

    def _refuse_old(self, session: ClientSession, command: Command, waited_s: float, queued: int) -> None:
        by_store = self._store_blocked and command.code in _SENDS
        reason = "pcbusy_clean_queue" if by_store else "timeout_clean_queue"
        remark = f"[{reason.upper()}]" + _CLEANED % (round(waited_s * 1000), queued)
        self._refuse(session, command, reason, remark)

    def _refuse(self, session: ClientSession, command: Command, reason: str, remark: str) -> None:
        self._count(command.code, session.remote_address, reason, remark)
        self._reply(session, command, Response(ResponseCode.SYSTEM_BUSY, remark))

    def _count(self, code: int, peer: str, reason: str, remark: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        if code in _SENDS:
            refused = self._broker.stats.refused
            refused[ResponseCode.SYSTEM_BUSY] = refused.get(ResponseCode.SYSTEM_BUSY, 0) + 1
        _throttled.warning("rejected a request from %s (code %d): %s", peer, code, remark)
