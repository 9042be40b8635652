"""The JSON summary: small, versioned, what an operator or a person reads first (docs/analytics.md, "Summary").

Each function makes one section from frames; lists are cut to a stated length, so a summary stays below some hundred KB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from delaymq_spark.jobs import compaction, delay, traffic
from delaymq_spark.jobs.plan import Plan, PlannedSegment, Sum, make_plan
from delaymq_spark.positions import Positions
from delaymq_spark.segments import Skipped

FORMAT_VERSION = 1
MAX_ROWS = 20
"""Of lists of topics, keys, groups and messages."""
MAX_SEGMENTS = 1_000
MAX_HOURS = 24 * 31
MAX_SKIPPED = 100


@dataclass(frozen=True, slots=True)
class SkippedParts:
    """What of a store gave no rows; a write under way at its end does not count."""

    count: int
    bytes_count: int
    first: tuple[Skipped, ...]
    """In order of the log, what is at its end last."""
    segments: frozenset[int] = frozenset()
    """Of which something was skipped: what was may be live."""


def head(
    job: str, positions: Positions, broker_name: str | None, as_of_ms: int, skipped: SkippedParts
) -> dict[str, Any]:
    """What every summary begins with."""
    return {
        "formatVersion": FORMAT_VERSION,
        "job": job,
        "store": positions.path,
        "storeId": positions.store_id,
        "brokerName": broker_name,
        "asOf": _iso(as_of_ms),
        "asOfMs": as_of_ms,
        "inUse": positions.open_or_killed,
        "complete": skipped.count == 0,
        "skippedCount": skipped.count,
        "skippedBytes": skipped.bytes_count,
        "skipped": [
            {
                "file": each.file, "position": each.position, "offset": each.offset, "lostBytes": each.lost_bytes,
                "reason": each.reason, "atEnd": each.at_end,
            }
            for each in skipped.first[:MAX_SKIPPED]
        ],
    }  # fmt: skip


def totals(messages: DataFrame) -> dict[str, Any]:
    """The store as a whole."""
    row = messages.agg(
        F.count("*").alias("messages"),
        F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"),
        F.count_distinct("topic").alias("topics"),
        F.count_distinct("segment").alias("segments"),
        F.min(F.unix_millis("store_time")).alias("first"),
        F.max(F.unix_millis("store_time")).alias("last"),
    ).collect()[0]
    return {
        "messages": row["messages"], "bytes": row["bytes"], "topics": row["topics"], "segments": row["segments"],
        "firstStored": _iso(row["first"]), "lastStored": _iso(row["last"]),
    }  # fmt: skip


def of_compaction(
    breakdown: DataFrame,
    positions: Positions,
    options: compaction.CompactionOptions,
    min_dead_ratio: float,
    unread: frozenset[int] = frozenset(),
) -> dict[str, Any]:
    """Live, dead and reclaimable bytes, why, and the plan, which leaves the segments `unread` as they are."""
    rows = (
        breakdown.groupBy("segment", "dead", "reason")
        .agg(F.sum("messages").alias("m"), F.sum("bytes").alias("b"), F.max(F.unix_millis("last_due")).alias("due"))
        .collect()
    )
    sums = [
        Sum(
            segment=row["segment"], dead=row["dead"], reason=row["reason"], messages=row["m"], bytes=row["b"],
            last_due_ms=row["due"],
        )
        for row in rows
    ]  # fmt: skip
    plan = make_plan(sums, positions.segments, min_dead_ratio=min_dead_ratio, unread=unread)
    by_topic = (
        breakdown.groupBy("topic")
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.sum(F.when(F.col("dead"), F.col("bytes")).otherwise(0)).alias("deadBytes"),
        )
        .orderBy(F.desc("deadBytes"), F.desc("bytes"), "topic")
        .limit(MAX_ROWS)
    )
    return {
        "liveBytes": sum(each.bytes for each in sums if not each.dead),
        "deadBytes": sum(each.bytes for each in sums if each.dead),
        "reclaimableBytes": plan.reclaimable_bytes,
        "copiedBytes": plan.copied_bytes,
        "pinnedBytes": plan.pinned_bytes,
        "retentionHours": options.retention_hours,
        "keyedTopics": sorted(options.keyed_topics),
        "minDeadRatio": min_dead_ratio,
        "dead": _by_reason(sums, compaction.DEAD_REASONS),
        "live": _by_reason(sums, compaction.LIVE_REASONS),
        "topics": [_plain(row) for row in by_topic.collect()],
        **_of_plan(plan),
    }


def of_delay(delayed: DataFrame, as_of_ms: int, promise_p99_ms: int, complete: bool) -> dict[str, Any]:
    """How punctual the delays were, and the promises. `complete`: whether nothing of the store was skipped."""
    whole = _camel(_plain(delay.lateness(delayed).collect()[0]))
    levels = delay.lateness(delayed, "level").orderBy("level").collect()
    topics = delay.lateness(delayed, "topic").orderBy(F.desc("max_ms"), "topic").limit(MAX_ROWS).collect()
    hours = delay.lateness(delayed.where("hour IS NOT NULL"), "hour").orderBy(F.desc("hour")).limit(MAX_HOURS).collect()
    waiting = delay.pending(delayed, as_of_ms).orderBy("level", "first_due").collect()
    first_due = min((row["first_due"] for row in waiting if row["first_due"] is not None), default=None)
    overdue = sum(row["messages"] for row in waiting if row["due"] == "overdue")
    first_due_ms = None if first_due is None else _milliseconds(first_due)
    return {
        **{name: value for name, value in whole.items() if not name.endswith("Ms")},
        "overdue": overdue,
        "nextDue": _iso(first_due_ms),
        "oldestOverdueMs": as_of_ms - first_due_ms if overdue and first_due_ms is not None else None,
        "lateness": {name: value for name, value in whole.items() if name.endswith("Ms")},
        "worstLatenessMs": whole["maxMs"],
        "lossesCertain": complete,
        "promises": _promises(whole, promise_p99_ms),
        "histogram": [_camel(_plain(row)) for row in delay.histogram(delayed).collect()],
        "byLevel": [_camel(_plain(row)) for row in levels],
        "byTopic": [_camel(_plain(row)) for row in topics],
        "byHour": [_camel(_plain(row)) for row in reversed(hours)],
        "pendingByDue": [_camel(_plain(row)) for row in waiting],
        "offenders": [
            _camel(_plain(row))
            for row in delay.offenders(delayed, MAX_ROWS)
            .select("broken", "level", "topic", "queue_offset", "physical_offset", "due_time", "lateness_ms", "copies")
            .collect()
        ],
    }


def of_traffic(messages: DataFrame, rows: DataFrame) -> dict[str, Any]:
    """What came in; `rows` are those of `traffic.transform`."""
    topics = traffic.topics(rows)
    hours = (
        rows.groupBy("hour")
        .agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
        .orderBy(F.desc("hour"))
        .limit(MAX_HOURS)
    )
    kinds = rows.groupBy("kind").agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")).orderBy("kind")
    return {
        "topTopics": [
            _camel(_plain(row)) for row in topics.orderBy(F.desc("bytes"), "topic").limit(MAX_ROWS).collect()
        ],
        "kinds": [_plain(row) for row in kinds.collect()],
        "byHour": [_plain(row) for row in reversed(hours.collect())],
        "sizes": [_camel(_plain(row)) for row in traffic.sizes(messages).collect()],
        "hotKeys": [_plain(row) for row in traffic.hot_keys(messages, MAX_ROWS).collect()],
        "failures": [_camel(_plain(row)) for row in traffic.failures(rows).limit(MAX_ROWS).collect()],
    }


def _promises(whole: dict[str, Any], promise_p99_ms: int) -> list[dict[str, Any]]:
    found = [
        {"name": name, "limit": 0, "found": whole[field], "kept": whole[field] == 0}
        for name, field in (("nothing lost", "lost"), ("nothing early", "early"), ("nothing twice", "duplicates"))
    ]
    p99 = whole["p99Ms"]
    kept = None if p99 is None else p99 <= promise_p99_ms
    return [*found, {"name": "99 % within", "limit": promise_p99_ms, "found": p99, "kept": kept}]


def _of_plan(plan: Plan) -> dict[str, Any]:
    return {
        "plan": [_segment(each) for each in plan.segments[:MAX_SEGMENTS]],
        "planSegments": len(plan.segments),
        "pins": [_segment(each) for each in plan.pins[:MAX_SEGMENTS]],
    }


def _segment(each: PlannedSegment) -> dict[str, Any]:
    return {
        "order": each.order, "segment": each.segment, "action": each.action.value, "messages": each.messages,
        "bytes": each.bytes, "liveBytes": each.live_bytes, "deadBytes": each.dead_bytes,
        "reclaimedBytes": each.reclaimed_bytes, "copiedBytes": each.copied_bytes,
        "pinningMessages": each.pinning_messages, "pinningBytes": each.pinning_bytes,
        "lastDue": _iso(each.last_due_ms), "onlyPinned": each.only_pinned, "fileBytes": each.file_bytes,
    }  # fmt: skip


def _by_reason(sums: Sequence[Sum], reasons: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for reason in reasons:
        of_reason = [each for each in sums if each.reason == reason]
        if of_reason:
            messages, size = sum(each.messages for each in of_reason), sum(each.bytes for each in of_reason)
            found.append({"reason": reason, "messages": messages, "bytes": size})
    return found


def _plain(row: Row) -> dict[str, Any]:
    """A row as JSON can hold it."""
    return {name: _value(value) for name, value in row.asDict().items()}


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return _iso(_milliseconds(value))
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    return value


def _camel(values: dict[str, Any]) -> dict[str, Any]:
    return {_camel_name(name): value for name, value in values.items()}


def _camel_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _milliseconds(time: datetime) -> int:
    # Spark gives naive times of this machine's zone.
    return round(time.timestamp() * 1000)


def _iso(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None
