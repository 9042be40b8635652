"""An old store: deleted segments, repaired damage, a recreated topic, transaction checks that have progressed."""

from __future__ import annotations

import random
from pathlib import Path

from delaymq.message import names
from delaymq.message.timed_marks import TimedMarkKind

from delaymq_spark_testing.workload import HOUR_MS, RETENTION_HOURS, Workload, Written

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
REASONS = {
    "filler", "delivered", "withdrawn", "replaced", "transaction_settled", "mark_obsolete", "topic_deleted", "consumed",
    "superseded", "expired", "pending", "lost", "half_pending", "operation_needed", "mark_needed", "unread", "retained",
}  # fmt: skip
"""All reasons that a record can have."""


def aged_workload(path: Path, *, seed: int = 1) -> Workload:
    """Write a store with every reason in several variants. `State` is the keyed topic; as of `now_ms`, retention 72 h.

    In order: records whose segments are deleted, records that refer to them, expired records, unexpired records.
    """
    life = _Life(Workload(path), random.Random(seed))
    delays, halves = life.past_that_goes()
    life.ends_of_what_is_gone(delays, halves)
    life.timed_messages()
    life.topic_made_anew_and_keys()
    life.delays_and_what_came_of_them()
    life.damage()
    read_to = life.work.records[-1].queue_offset + 1
    life.check_backs()
    life.coming_of_age()
    life.consumption(read_to)
    life.work.set_delay_offsets()
    life.work.close()
    return life.work


class _Life:
    """Phases of the store's life; each sets the reasons of its records, except for those of the noise."""

    def __init__(self, work: Workload, chance: random.Random) -> None:
        self.work = work
        self._chance = chance
        self._noise: list[Written] = []
        self._timed: list[Written] = []

    def past_that_goes(self) -> tuple[list[Written], list[Written]]:
        """Write delays and half messages whose segments are then deleted; only records that name them remain."""
        work = self.work
        delays = [work.delay(level, "Later", 0) for level in (2, 5, 5)]
        self._timed = [work.schedule(work.now_ms + HOUR_MS, "Later", 0) for _ in range(2)]
        halves = [work.half("Money", 0) for _ in range(3)]
        first_key = work.send("State", 0, "retained", keys="k0")
        self._later(60)
        boundary = work.send("Noise", 0, "unread", bytes(16_000))
        self._noise.append(boundary)
        self._later()
        work.delete_segments_before(boundary.segment)
        assert first_key not in work.records
        return delays, halves

    def ends_of_what_is_gone(self, delays: list[Written], halves: list[Written]) -> None:
        """Settle the deleted records. Level 2 has no records left, level 5 only newer ones: no mark is needed."""
        work = self.work
        for entry in delays[:2]:
            work.drop(entry).reason = "mark_obsolete"
        for half in halves:
            message = work.end(half, commit=half is halves[0])
            work.records[-1].reason = "transaction_settled"
            if message is not None:
                message.reason = "expired"
        work.lose(delays[2])
        # The other one is carried: the log no longer contains a record of an older message.
        work.drop(self._timed[0]).reason = "mark_obsolete"
        self._later()

    def timed_messages(self) -> None:
        """Write timed messages that are carried, moved, cancelled, dead, stored again by RocketMQ 5, or delivered."""
        work = self.work
        carried = work.carry(work.carry(self._timed[1]))
        moved = work.schedule(work.now_ms + HOUR_MS, "Later", 1)
        work.state(moved, TimedMarkKind.MOVED, next_due_ms=work.now_ms + 1)
        work.state(work.schedule(work.now_ms + HOUR_MS, "Later", 1), TimedMarkKind.CANCELLED)
        work.dead_letter(work.schedule(work.now_ms + 1, "Later", 1)).reason = "expired"
        work.roll(work.schedule(work.now_ms + 3_650 * 24 * HOUR_MS, "Later", 1))
        self._later()
        for entry in (carried, moved, moved):
            work.deliver(entry).reason = "expired"
        work.carry(work.schedule(work.now_ms + 1_000 * HOUR_MS, "Later", 0), work.now_ms + 500 * HOUR_MS)

    def topic_made_anew_and_keys(self) -> None:
        """Write messages of a deleted topic and of a new topic with the same name, and repeated keys."""
        work = self.work
        deleted = [work.send("Gone", queue_id, "topic_deleted") for queue_id in (0, 1, 0)]
        work.delete_topic("Gone")
        work.send("Gone", 0, "expired")
        assert all(record.reason == "topic_deleted" for record in deleted)
        for number in range(6):
            work.send("State", number % 2, "superseded", keys=f"k{number % 3}")
        work.send("State", 0, "expired")
        self._later()

    def delays_and_what_came_of_them(self) -> None:
        """Write delays that are dropped, dead, lost, intended for the half topic, or delivered twice."""
        work = self.work
        work.drop(work.delay(5, "Later", 0))
        work.dead_letter(work.delay(5, "Later", 0)).reason = "expired"
        work.lose(work.delay(5, "Later", 1))
        work.delay(5, names.HALF_TOPIC, 0).reason = "withdrawn"
        twice = work.delay(5, "Later", 1)
        self._later()
        for _ in range(2):
            work.deliver(twice).reason = "expired"

    def damage(self) -> None:
        """Damage records, within a topic and all records of a queue; recovery fills the gaps."""
        work = self.work
        holes = [self._noise.pop(), work.send("Kept", 3, "retained"), work.send("Kept", 3, "retained")]
        self._later()
        for hole in holes:
            work.damage(hole)

    def check_backs(self) -> None:
        """Write half messages, settled by the progress of checks, by an op mark, or not; and op marks likewise."""
        work = self.work
        passed = [work.half("Money", 0) for _ in range(2)]
        for half in passed:
            half.reason = "transaction_settled"
        done = work.half("Money", 1)
        work.end(done, commit=False)
        work.records[-1].reason = "transaction_settled"
        operations_to = work.records[-1].queue_offset + 1
        work.half("Money", 1)
        other = work.half("Money", 0)
        work.end(other, commit=False)
        work.consume(TRANSACTION_GROUP, names.HALF_TOPIC, 0, passed[-1].queue_offset + 1)
        work.consume(TRANSACTION_GROUP, names.OP_HALF_TOPIC, 0, operations_to)
        self._later()

    def coming_of_age(self) -> None:
        """Let old records expire, but not the newest ones. Delays, marks and half messages never expire."""
        work = self.work
        work.append("%RETRY%shop", 0, "expired", body=b"r", reconsume_times=2)
        work.append("%DLQ%shop", 0, "expired", body=b"r", reconsume_times=16)
        work.now_ms += 100 * HOUR_MS
        for number in range(3):
            work.send("State", 0, "retained", keys=f"k{number}")
        work.send("Gone", 0, "retained")
        work.deliver(work.delay(1, "Later", 0))
        for level in (1, 5, 18):
            work.delay(level, "Later", 0)
        self._later(30)
        work.send("Kept", 0, "retained")

    def consumption(self, read_to: int) -> None:
        """Let a group read the noise up to `read_to`; old records of the rest expire."""
        expired_before_ms = self.work.now_ms - RETENTION_HOURS * HOUR_MS
        for record in self._noise:
            if record.queue_offset < read_to:
                record.reason = "consumed"
            elif record.store_ms < expired_before_ms:
                record.reason = "expired"
        self.work.consume("readers", "Noise", 0, read_to)
        self.work.consume("TOOLS_CONSUMER", "Kept", 0, 1)

    def _later(self, records: int = 6) -> None:
        """Write other messages in between, so that segments contain a mixture, and advance the time."""
        chance = self._chance
        self._noise.extend(self.work.send("Noise", 0, "unread", bytes(chance.randrange(600))) for _ in range(records))
        self.work.now_ms += chance.randrange(1, 5_000)
