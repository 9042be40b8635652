"""A store with a past: old segments deleted, damage filled, a topic made anew, a check-back that went on."""

from __future__ import annotations

import random
from pathlib import Path

from delaymq.message import names
from spark_workload import HOUR_MS, Workload, Written

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
REASONS = {
    "filler", "delivered", "withdrawn", "transaction_settled", "mark_obsolete", "topic_deleted", "consumed",
    "superseded", "expired", "pending", "lost", "half_pending", "operation_needed", "mark_needed", "unread", "retained",
}  # fmt: skip
"""All that a record of it can be."""


def aged_workload(path: Path, *, seed: int = 1) -> Workload:
    """Every reason there is, each in several ways. `State` is the keyed topic; as of `now_ms`, retention 72 h.

    In order: a past whose segments are deleted; what refers to it; what expires; what does not.
    """
    chance = random.Random(seed)
    work = Workload(path)
    noise: list[Written] = []

    def later(records: int = 6) -> None:
        """Other messages in between, so that segments hold mixtures."""
        noise.extend(work.send("Noise", 0, "unread", bytes(chance.randrange(600))) for _ in range(records))
        work.now_ms += chance.randrange(1, 5_000)

    # The past: of these no trace stays but what names them.
    gone_delays = [work.delay(level, "Later", 0) for level in (2, 5, 5)]
    gone_halves = [work.half("Money", 0) for _ in range(3)]
    first_key = work.send("State", 0, "retained", keys="k0")
    later(60)
    boundary = work.send("Noise", 0, "unread", bytes(16_000))
    noise.append(boundary)
    later()
    work.delete_segments_before(boundary.segment)
    assert first_key not in work.records

    # Level 2 has no record any more, level 5 only younger ones: neither mark is needed.
    for entry in gone_delays[:2]:
        work.drop(entry).reason = "mark_obsolete"
    for half in gone_halves:
        message = work.end(half, commit=half is gone_halves[0])
        work.records[-1].reason = "transaction_settled"
        if message is not None:
            message.reason = "expired"
    work.lose(gone_delays[2])
    later()
    deleted = [work.send("Gone", queue_id, "topic_deleted") for queue_id in (0, 1, 0)]
    work.delete_topic("Gone")
    again = [work.send("Gone", 0, "expired")]
    assert all(record.reason == "topic_deleted" for record in deleted)
    old_keys = [work.send("State", number % 2, "superseded", keys=f"k{number % 3}") for number in range(6)]
    without_key = work.send("State", 0, "expired")
    later()

    kept_delay = work.delay(5, "Later", 0)
    work.drop(kept_delay)
    work.dead_letter(work.delay(5, "Later", 0)).reason = "expired"
    work.lose(work.delay(5, "Later", 1))
    to_half = work.delay(5, names.HALF_TOPIC, 0)
    to_half.reason = "withdrawn"
    twice = work.delay(5, "Later", 1)
    later()
    for _ in range(2):
        work.deliver(twice).reason = "expired"
    holes = [noise.pop(), work.send("Kept", 3, "retained"), work.send("Kept", 3, "retained")]
    later()
    for hole in holes:
        work.damage(hole)
    read_to = work.records[-1].queue_offset + 1

    # Half messages: settled by the check-back's progress, by an op record, and not; then op records the same.
    passed = [work.half("Money", 0) for _ in range(2)]
    settled_to = passed[-1].queue_offset + 1
    for half in passed:
        half.reason = "transaction_settled"
    done = work.half("Money", 1)
    work.end(done, commit=False)
    work.records[-1].reason = "transaction_settled"
    operations_to = work.records[-1].queue_offset + 1
    work.half("Money", 1)
    other = work.half("Money", 0)
    work.end(other, commit=False)
    work.consume(TRANSACTION_GROUP, names.HALF_TOPIC, 0, settled_to)
    work.consume(TRANSACTION_GROUP, names.OP_HALF_TOPIC, 0, operations_to)
    later()

    # What has come of age expires; the newest do not. Delays, marks, halves never do.
    work.append("%RETRY%shop", 0, "expired", body=b"r", reconsume_times=2)
    work.append("%DLQ%shop", 0, "expired", body=b"r", reconsume_times=16)
    work.now_ms += 100 * HOUR_MS
    new_keys = [work.send("State", 0, "retained", keys=f"k{number}") for number in range(3)]
    again.append(work.send("Gone", 0, "retained"))
    work.deliver(work.delay(1, "Later", 0))
    for level in (1, 5, 18):
        work.delay(level, "Later", 0)
    later(30)
    work.send("Kept", 0, "retained")
    assert len(old_keys) > len(new_keys)
    assert without_key.reason == "expired"

    expired_before_ms = work.now_ms - 72 * HOUR_MS
    for record in noise:
        if record.queue_offset < read_to:
            record.reason = "consumed"
        elif record.store_ms < expired_before_ms:
            record.reason = "expired"
    work.consume("readers", "Noise", 0, read_to)
    work.consume("TOOLS_CONSUMER", "Kept", 0, 1)
    work.set_delay_offsets()
    work.close()
    return work
