"""Periodic jobs of a broker, with their intervals."""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from delaymq.broker.statistics.counters import SAMPLE_INTERVAL_MS
from delaymq.server.jobs.background import Job, Task

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.server.requests.long_polling import HeldPulls
    from delaymq.server.requests.sessions import Sessions

WRITE_BEHIND_INTERVAL_MS: Final = 1_000
"""Maximum delay of queues and index on disk behind the log, as RocketMQ's flushIntervalConsumeQueue."""
WRITE_BEHIND_BUSY_INTERVAL_MS: Final = 200
"""The same, while more is left than fits one time slice."""
WRITE_BEHIND_SLICE_S: Final = 0.01
"""Time slice of writing; not a number of files, because a new file takes ten times as long as an old one."""
WRITE_BEHIND_ROUND_FILES: Final = 4
MERGE_INTERVAL_MS: Final = 200
MERGE_BUSY_INTERVAL_MS: Final = 4
"""Each step merges some 1,000 entries of the timeline in half a millisecond: 200,000 entries per second."""
CARRY_INTERVAL_MS: Final = 200
CARRY_BUSY_INTERVAL_MS: Final = 10
ALLOCATION_INTERVAL_MS: Final = 200
SNAPSHOT_INTERVAL_MS: Final = 1_000
CLEAN_INTERVAL_MS: Final = 10_000
EXPIRE_INTERVAL_MS: Final = 10_000
RULES_INTERVAL_MS: Final = 2_000
"""Interval between checks for changed rule files; RocketMQ uses 5 s."""
DELAY_OFFSET_INTERVAL_MS: Final = 1_000
"""Interval of the check; the delivery applies flushDelayOffsetInterval."""
TABLES_INTERVAL_MS: Final = 200
"""Interval between checks for changed topics, groups or memberships; a member lost in a crash is missing until its next
heartbeat, up to 30 s. Consumer offsets have a separate interval."""
NOTIFY_INTERVAL_MS: Final = 200
MEMBERS_NOTIFIED_PER_SLICE: Final = 250
"""Maximum members notified of a group change per time slice of some 3 ms."""
HELD_DEADLINE_INTERVAL_MS: Final = 400
LONG_POLLING_RECHECK_MS: Final = 5_000
"""Interval between rechecks of held pulls, as in RocketMQ."""
RECHECK_SLICE_INTERVAL_MS: Final = 200

TRANSACTIONS_INTERVAL_MS: Final = 200
"""Interval of the check; transactions apply transactionCheckInterval."""
TRANSACTIONS_AT_ONCE: Final = 16
TRANSACTIONS_SLICE_S: Final = 0.004
"""Time slice of checking transactions, each of which reads and sends the whole message."""

_logger = logging.getLogger(__name__)


class BrokerJobs:
    """Periodic jobs of one broker, and the state between their runs."""

    def __init__(self, broker: "Broker", held_pulls: "HeldPulls", sessions: "Sessions") -> None:
        self._broker = broker
        self._held_pulls = held_pulls
        self._sessions = sessions
        self._unwritten = False
        self._unmerged = False
        self._is_carrying = False
        self._offsets_due_ms = 0

    def jobs(self) -> list[Job]:
        """Return all jobs; for a read-only broker, only those that do not write."""
        broker = self._broker
        store = broker.store
        read = [
            _job("held pulls' deadlines", HELD_DEADLINE_INTERVAL_MS, self._expire_pulls),
            _job("statistics", SAMPLE_INTERVAL_MS, self._sample),
            _job("held pulls", RECHECK_SLICE_INTERVAL_MS, self._recheck),
            _job("changed groups", NOTIFY_INTERVAL_MS, self._notify_members),
            _job("silent clients", EXPIRE_INTERVAL_MS, self._expire_clients),
            _job("access rules", RULES_INTERVAL_MS, self._reload_rules),
        ]
        if broker.config.read_only:
            return read
        return [
            _job("allocation", ALLOCATION_INTERVAL_MS, store.allocation_task),
            Job(name="write behind", interval_ms=self._write_behind_interval_ms, run=self._write_behind),
            Job(name="timeline", interval_ms=self._merge_interval_ms, run=self._merge),
            Job(name="carrying", interval_ms=self._carry_interval_ms, run=self._carry),
            _job("snapshot", SNAPSHOT_INTERVAL_MS, store.snapshot_task),
            _job("delay offsets", DELAY_OFFSET_INTERVAL_MS, broker.delivery.save_task),
            _job("transactions", TRANSACTIONS_INTERVAL_MS, self._check_transactions),
            _job("tables", TABLES_INTERVAL_MS, self._persist),
            _job("retention", CLEAN_INTERVAL_MS, self._clean),
            *read,
        ]

    def _write_behind(self) -> None:
        yield_at = time.monotonic() + WRITE_BEHIND_SLICE_S
        self._unwritten = True
        while self._unwritten and time.monotonic() < yield_at:
            self._unwritten = self._broker.store.write_behind(WRITE_BEHIND_ROUND_FILES)

    def _write_behind_interval_ms(self) -> int:
        return WRITE_BEHIND_BUSY_INTERVAL_MS if self._unwritten else WRITE_BEHIND_INTERVAL_MS

    def _merge(self) -> None:
        self._unmerged = self._broker.delivery.maintain()

    def _merge_interval_ms(self) -> int:
        return MERGE_BUSY_INTERVAL_MS if self._unmerged else MERGE_INTERVAL_MS

    def _carry(self) -> None:
        self._is_carrying = self._broker.delivery.carry(self._broker.now_ms())

    def _carry_interval_ms(self) -> int:
        return CARRY_BUSY_INTERVAL_MS if self._is_carrying else CARRY_INTERVAL_MS

    def _clean(self) -> None:
        for deleted in self._broker.store.clean(self._broker.now_ms()):
            _logger.info("deleted %s", deleted)

    def _expire_clients(self) -> None:
        for session in self._broker.expire_clients(self._broker.now_ms()):
            self._sessions.close(session.id)

    def _recheck(self) -> None:
        config = self._broker.config
        every_ms = LONG_POLLING_RECHECK_MS if config.long_polling_enable else config.short_polling_time_mills
        self._held_pulls.recheck(self._broker.now_ms(), every_ms, RECHECK_SLICE_INTERVAL_MS)

    def _persist(self) -> Task | None:
        # Memberships must survive an imminent crash; offsets change constantly and are saved less often.
        broker = self._broker
        now_ms = broker.now_ms()
        if not (broker.topics.dirty or broker.groups.dirty or broker.clients.dirty or now_ms >= self._offsets_due_ms):
            return None
        self._offsets_due_ms = now_ms + broker.config.flush_consumer_offset_interval
        return broker.persist_task(now_ms)

    def _check_transactions(self) -> None:
        broker = self._broker
        yield_at = time.monotonic() + TRANSACTIONS_SLICE_S
        while broker.transactions.check(broker.now_ms(), TRANSACTIONS_AT_ONCE) == TRANSACTIONS_AT_ONCE:
            if time.monotonic() >= yield_at:
                break
        broker.announce_arrivals()

    def _sample(self) -> None:
        self._broker.stats.sample(self._broker.now_ms())

    def _expire_pulls(self) -> None:
        if self._held_pulls:
            self._held_pulls.expire(self._broker.now_ms())

    def _reload_rules(self) -> Task | None:
        access = self._broker.access
        return None if access is None else access.rules.reload_task()

    def _notify_members(self) -> None:
        self._broker.clients.notify_members(MEMBERS_NOTIFIED_PER_SLICE)


def _job(name: str, interval_ms: int, run: Callable[[], Task | None]) -> Job:
    return Job(name=name, interval_ms=lambda: interval_ms, run=run)
