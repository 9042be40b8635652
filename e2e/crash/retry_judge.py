"""Effects of a crash on messages that were sent back and on consumer offsets, according to the log and the broker."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from crash.retry_load import GROUP, Told
from harness.commitlog import delayed_messages, records

RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"


@dataclass(frozen=True, kw_only=True)
class RetryVerdict:
    """The violations; keys of messages, or sentences about offsets."""

    acknowledged: int
    failed: int
    stored_although_failed: int
    lost: tuple[str, ...]
    """Send-back acknowledged, but neither redelivered nor in the dead-letter topic."""
    twice: tuple[str, ...]
    """One send-back, but several records where consumers read."""
    wrong_way: tuple[str, ...]
    """In the dead-letter topic instead of being redelivered, or vice versa."""
    early: tuple[str, ...]
    offsets: tuple[str, ...]
    """Offsets beyond the queue's end, never committed, or older than the interval allows."""

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.twice or self.wrong_way or self.early or self.offsets)

    def text(self) -> str:
        return (
            f"acknowledged {self.acknowledged}, failed {self.failed} (stored anyway {self.stored_although_failed}),"
            f" lost {self.lost[:3]}, twice {self.twice[:3]}, wrong way {self.wrong_way[:3]}, early {self.early[:3]},"
            f" offsets {self.offsets[:3]}"
        )


def judge_retries(store_path: Path, level_table: str, told: Told, allowed_loss_s: float) -> RetryVerdict:
    """Compare the responses to the consumer with the log of a stopped broker."""
    retries: Counter[str] = Counter()
    dead: Counter[str] = Counter()
    for record in records(store_path):
        if record.topic == RETRY:
            retries[record.unique_key] += 1
        elif record.topic == DEAD:
            dead[record.unique_key] += 1
    waited = delayed_messages(store_path, level_table, real_topic=RETRY)
    early = [
        key
        for key, messages in waited.items()
        if any(copy.stored_ms < message.due_ms for message in messages for copy in message.copies)
    ]
    hopeless = {message.key for message in told.messages if message.is_hopeless}
    keys = [message.key for message in told.messages]
    return RetryVerdict(
        acknowledged=len(told.acknowledged),
        failed=len(told.failed),
        stored_although_failed=sum(1 for key in told.failed if retries[key] + dead[key]),
        lost=tuple(
            key
            for key in keys
            # A send-back that was scheduled without a response must be delivered as well.
            if not retries[key] + dead[key] and (key in told.acknowledged or key in waited)
        ),
        twice=tuple(key for key in keys if retries[key] + dead[key] > 1 or len(waited.get(key, ())) > 1),
        wrong_way=tuple(key for key in keys if (retries if key in hopeless else dead)[key]),
        early=tuple(early),
        offsets=tuple(_offset_breaches(told, allowed_loss_s)),
    )


def _offset_breaches(told: Told, allowed_loss_s: float) -> list[str]:
    breaches = []
    for found_at, seen in told.found:
        last_answer_s = max((at for at, _, _ in told.commits if at < found_at), default=0.0)
        for queue_id, (offset, end) in seen.items():
            mine = [(at, value) for at, queue, value in told.commits if queue == queue_id and at < found_at]
            kept = max((value for at, value in mine if at < last_answer_s - allowed_loss_s), default=0)
            if offset > end:
                breaches.append(f"queue {queue_id}: offset {offset} lies beyond the queue's end {end}")
            if offset > told.highest_tried.get(queue_id, 0):
                breaches.append(f"queue {queue_id}: nobody committed {offset}")
            if offset < kept:
                breaches.append(f"queue {queue_id}: {offset}, but {kept} was acknowledged long before")
    return breaches
