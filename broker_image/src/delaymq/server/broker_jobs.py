"""What a broker does at intervals."""

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
"""As RocketMQ's flushIntervalConsumeQueue: how far queues and index on disk may be behind the log."""
WRITE_BEHIND_BUSY_INTERVAL_MS: Final = 200
"""The same while more is left than one turn of the loop may take."""
WRITE_BEHIND_TURN_S: Final = 0.01
"""How long one turn writes: a new file takes ten times as long as an old one, so a number of files bounds nothing."""
WRITE_BEHIND_ROUND_FILES: Final = 4
ALLOCATION_INTERVAL_MS: Final = 200
SNAPSHOT_INTERVAL_MS: Final = 1_000
CLEAN_INTERVAL_MS: Final = 10_000
EXPIRE_INTERVAL_MS: Final = 10_000
RULES_INTERVAL_MS: Final = 2_000
"""How soon a changed file of access control counts; RocketMQ looks every 5 s."""
DELAY_OFFSET_INTERVAL_MS: Final = 1_000
"""How often is asked; the delivery knows its own interval (flushDelayOffsetInterval)."""
TABLES_INTERVAL_MS: Final = 200
"""How often is looked whether topics, groups or memberships changed: a consumer that a crash forgets waits 30 s for its
heartbeat. Consumer offsets have an interval of their own."""
TELL_INTERVAL_MS: Final = 200
MEMBERS_TOLD_A_TURN: Final = 250
"""Members of large groups that hear of a change in one turn of the loop: some 3 ms."""
HELD_DEADLINE_INTERVAL_MS: Final = 400
LONG_POLLING_RECHECK_MS: Final = 5_000
"""RocketMQ looks at held pulls this often too."""
RECHECK_SLICE_INTERVAL_MS: Final = 200

TRANSACTIONS_INTERVAL_MS: Final = 200
"""How often is asked; transactions know their own rounds (transactionCheckInterval)."""
TRANSACTIONS_AT_ONCE: Final = 16
TRANSACTIONS_TURN_S: Final = 0.004
"""How long one turn asks producers: a message that is asked about is read and sent whole."""

_logger = logging.getLogger(__name__)


def jobs_of(broker: "Broker", held_pulls: "HeldPulls", sessions: "Sessions") -> list[Job]:
    """The jobs of one broker."""
    store = broker.store

    unwritten = False

    def write_behind() -> None:
        nonlocal unwritten
        give_way_at = time.monotonic() + WRITE_BEHIND_TURN_S
        unwritten = True
        while unwritten and time.monotonic() < give_way_at:
            unwritten = store.write_behind(WRITE_BEHIND_ROUND_FILES)

    def write_behind_interval_ms() -> int:
        return WRITE_BEHIND_BUSY_INTERVAL_MS if unwritten else WRITE_BEHIND_INTERVAL_MS

    def clean() -> None:
        for deleted in store.clean(broker.now_ms()):
            _logger.info("deleted %s", deleted)

    def expire_clients() -> None:
        for session in broker.expire_clients(broker.now_ms()):
            sessions.close(session.id)

    def recheck() -> None:
        config = broker.config
        every_ms = LONG_POLLING_RECHECK_MS if config.long_polling_enable else config.short_polling_time_mills
        held_pulls.recheck(broker.now_ms(), every_ms, RECHECK_SLICE_INTERVAL_MS)

    offsets_due_ms = 0

    def persist() -> Task | None:
        # Who is a member of which group must outlive a crash of the next second; offsets change all the time and wait.
        nonlocal offsets_due_ms
        now_ms = broker.now_ms()
        if not (broker.topics.dirty or broker.groups.dirty or broker.clients.dirty or now_ms >= offsets_due_ms):
            return None
        offsets_due_ms = now_ms + broker.config.flush_consumer_offset_interval
        return broker.persist_task(now_ms)

    def check_transactions() -> None:
        give_way_at = time.monotonic() + TRANSACTIONS_TURN_S
        while broker.transactions.check(broker.now_ms(), TRANSACTIONS_AT_ONCE) == TRANSACTIONS_AT_ONCE:
            if time.monotonic() >= give_way_at:
                break
        broker.announce_arrivals()

    def sample() -> None:
        broker.stats.sample(broker.now_ms())

    def expire_pulls() -> None:
        if held_pulls:
            held_pulls.expire(broker.now_ms())

    def reload_rules() -> Task | None:
        return None if broker.access is None else broker.access.rules.reload_task()

    def tell_members() -> None:
        broker.clients.tell_members(MEMBERS_TOLD_A_TURN)

    def fixed(interval_ms: int) -> Callable[[], int]:
        return lambda: interval_ms

    read = [
        Job(name="held pulls' deadlines", interval_ms=fixed(HELD_DEADLINE_INTERVAL_MS), run=expire_pulls),
        Job(name="statistics", interval_ms=fixed(SAMPLE_INTERVAL_MS), run=sample),
        Job(name="held pulls", interval_ms=fixed(RECHECK_SLICE_INTERVAL_MS), run=recheck),
        Job(name="changed groups", interval_ms=fixed(TELL_INTERVAL_MS), run=tell_members),
        Job(name="silent clients", interval_ms=fixed(EXPIRE_INTERVAL_MS), run=expire_clients),
        Job(name="rules of access", interval_ms=fixed(RULES_INTERVAL_MS), run=reload_rules),
    ]
    if broker.config.read_only:
        return read
    return [
        Job(name="allocation", interval_ms=fixed(ALLOCATION_INTERVAL_MS), run=store.allocation_task),
        Job(name="write behind", interval_ms=write_behind_interval_ms, run=write_behind),
        Job(name="snapshot", interval_ms=fixed(SNAPSHOT_INTERVAL_MS), run=store.snapshot_task),
        Job(name="delay offsets", interval_ms=fixed(DELAY_OFFSET_INTERVAL_MS), run=broker.delivery.save_task),
        Job(name="transactions", interval_ms=fixed(TRANSACTIONS_INTERVAL_MS), run=check_transactions),
        Job(name="tables", interval_ms=fixed(TABLES_INTERVAL_MS), run=persist),
        Job(name="retention", interval_ms=fixed(CLEAN_INTERVAL_MS), run=clean),
        *read,
    ]
