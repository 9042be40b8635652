"""State of the delivery for reports: counters, lateness, and the content of `/api/v1/delay`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from delaymq.broker.delivery.queue_state import QueueState
from delaymq.broker.delivery.timed.carrying import Carrier
from delaymq.message.levels import DelayLevels, level_of_queue, queue_of_level
from delaymq.schedule.timeline import TIMELINE_QUEUE, Timeline
from delaymq.schedule.timeline.inspection import index_size

# Widths of buckets, one per ms below 16 ms and eight per doubling above, so that the error is at most 12.5 %:
_EXACT_MS = 16
_STEPS = 8
_MAX_BITS = 40
"""2^40 ms are 34 years; longer latenesses share the last bucket."""
_BUCKETS = _EXACT_MS + (_MAX_BITS - 4) * _STEPS


@dataclass(slots=True)
class DeliveryCounters:
    """Totals since the start."""

    delivered: dict[str, int] = field(default_factory=dict)
    """Delivered messages by real topic."""
    clamped: int = 0
    """Messages whose level was above the highest level of the table."""
    dead: int = 0
    """Undeliverable messages, moved to the dead-letter topic."""
    dropped: int = 0
    """Dropped messages for the half topic, as in RocketMQ."""
    refused: int = 0
    """Overdue messages that were dropped on request or after a downtime, each settled by a mark."""
    expired: int = 0
    """Messages that were dropped because they were later than their producers allowed."""
    repeated: int = 0
    """Delivered runs of repeating messages."""
    skipped: int = 0
    """Runs of repeating messages that were not delivered because they were missed or late; of those that one decision
    skips, up to 100 are counted."""
    limited: dict[str, int] = field(default_factory=dict)
    """Messages that were rejected because of a limit of their topic or account, by limit."""
    topic_gone: dict[str, int] = field(default_factory=dict)
    """Messages whose topic had been deleted when they were due, and that were not delivered, by treatment."""
    changed: dict[str, int] = field(default_factory=dict)
    """Changes of pending messages on request, by kind of the mark."""
    corrupt: int = 0
    """Entries with an unreadable record."""
    gone: int = 0
    """Pending entries whose log segment is missing or damaged."""
    failed: int = 0
    """Failed hand-overs, which are retried."""
    foreign: int = 0
    """Delivered messages that a foreign broker had delayed, without proof in the log of an earlier delivery."""
    disbelieved: int = 0
    """Marks that do not match their record: copied by a client through a foreign broker."""
    corrected: dict[str, int] = field(default_factory=dict)
    """Levels whose position in delayOffset.json was corrected, by reason."""


@dataclass(frozen=True, kw_only=True)
class PositionCorrection:
    """Level whose position at the start differs from delayOffset.json."""

    level: int
    stated: int
    """Number in the file; 0 without one."""
    position: int
    """Position from which the schedule continues."""
    reason: str
    """`missing`, `stale`, `ahead`, `corrupt` or `out-of-range`."""

    def as_json(self) -> dict[str, object]:
        """Return one element of `corrected`."""
        return {"level": self.level, "from": self.stated, "to": self.position, "reason": self.reason}


class LatenessHistogram:
    """Lateness in a fixed number of buckets, whose width increases with the lateness."""

    __slots__ = ("count", "counts", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.counts = array("Q", bytes(8 * _BUCKETS))
        self.count = 0
        self.sum_ms = 0
        self.max_ms = 0

    def add(self, lateness_ms: int, messages: int = 1) -> None:
        """Count messages."""
        if lateness_ms < _EXACT_MS:
            self.counts[max(lateness_ms, 0)] += messages
        else:
            shift = lateness_ms.bit_length() - 4
            bucket = _EXACT_MS + (shift - 1) * _STEPS + (lateness_ms >> shift) - _STEPS
            self.counts[min(bucket, _BUCKETS - 1)] += messages
        self.count += messages
        self.sum_ms += lateness_ms * messages
        if lateness_ms > self.max_ms:
            self.max_ms = lateness_ms

    @staticmethod
    def highest_ms(bucket: int) -> int:
        """Return the maximum lateness in `bucket`."""
        if bucket < _EXACT_MS:
            return bucket
        shift, step = divmod(bucket - _EXACT_MS, _STEPS)
        return ((_STEPS + step + 1) << (shift + 1)) - 1

    def percentile_ms(self, fraction: float) -> int:
        """Return the lateness that this fraction of messages did not exceed; 0 without messages."""
        if self.count == 0:
            return 0  # a table may have 1,000 levels that nobody uses
        wanted = fraction * self.count
        seen = 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return min(self.highest_ms(bucket), self.max_ms)
        return 0

    def as_json(self) -> dict[str, int]:
        """Return `lateness` of a level."""
        return {"p50Ms": self.percentile_ms(0.5), "p99Ms": self.percentile_ms(0.99), "maxMs": self.max_ms}


def status_of(
    *,
    as_of_ms: int,
    levels: DelayLevels,
    queues: Mapping[int, QueueState],
    end_offsets: Mapping[int, int],
    timeline: Timeline,
    carrier: Carrier,
    next_due_ms: dict[int, int],
    lateness: dict[int, LatenessHistogram],
    corrected: Iterable[PositionCorrection],
    held: dict[str, object] | None = None,
) -> dict[str, object]:
    """Return the content of `/api/v1/delay`: every level of the table, every queue that has been used, and timed
    messages.

    `end_offsets` are those of the queues. `next_due_ms` and `lateness` have the figures of timed messages under
    TIMELINE_QUEUE.
    """
    none = LatenessHistogram()
    shown = []
    for level in sorted({*range(1, levels.max_level + 1), *map(level_of_queue, queues)}):
        queue_id = queue_of_level(level)
        queue = queues.get(queue_id)
        shown.append(
            {
                "level": level,
                "delayMs": levels.delay_ms(level) if level in levels else None,
                "inTable": level in levels,
                "offset": queue.settled.low if queue else 0,
                "maxOffset": end_offsets.get(queue_id, 0),
                "pending": timeline.partitions.of_level(level).messages,
                "settledAbove": queue.settled.above.count if queue else 0,
                "nextDueMs": next_due_ms.get(queue_id),
                "lateness": lateness.get(queue_id, none).as_json(),
            }
        )
    return {
        "asOfMs": as_of_ms,
        "levels": shown,
        "timed": _timed(timeline, carrier, next_due_ms.get(TIMELINE_QUEUE), lateness.get(TIMELINE_QUEUE, none)),
        "corrected": [correction.as_json() for correction in corrected],
        "held": held,
    }


def _timed(
    timeline: Timeline, carrier: Carrier, next_due_ms: int | None, lateness: LatenessHistogram
) -> dict[str, object]:
    size, pending = index_size(timeline), timeline.partitions.of_level(0)
    return {
        "pending": pending.messages,
        "pendingBytes": pending.bytes,
        "nextDueMs": next_due_ms,
        "delivered": lateness.count,
        "lateness": lateness.as_json(),
        "index": {"runs": size.runs, "fileBytes": size.file_bytes, "mergingEntries": size.merging_entries},
        "carried": {"messages": carrier.carried_messages, "bytes": carrier.carried_bytes, "backlog": carrier.backlog},
    }
