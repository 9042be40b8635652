"""The JSON summary: small, versioned, and the starting point for users (docs/analytics.md, "Summary").

Each function makes one section; lists are cut to a stated length, so a summary stays below some hundred KB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from delaymq_spark.jobs import compaction
from delaymq_spark.jobs.claims import OUTCOMES
from delaymq_spark.jobs.delay import DUE_IN, LATENESS_EDGES_MS, OFFENDERS
from delaymq_spark.jobs.facts import SkippedParts
from delaymq_spark.jobs.group_progress import lags
from delaymq_spark.jobs.plan import Plan, PlannedSegment, Proof, Sum, make_plan
from delaymq_spark.jobs.results import MAX_HOURS, MAX_ROWS, Aggregates
from delaymq_spark.store.positions import Positions

FORMAT_VERSION = 1
MAX_SEGMENTS = 1_000
_FATES = ("messages", *OUTCOMES, "duplicates", "early")
_LATENESS = ("p50_ms", "p90_ms", "p99_ms", "max_ms", "mean_ms")


def head(
    job: str, positions: Positions, broker_name: str | None, as_of_ms: int, skipped: SkippedParts
) -> dict[str, Any]:
    """Return the header of every summary."""
    return {
        "formatVersion": FORMAT_VERSION,
        "job": job,
        "store": positions.path,
        "storeId": positions.store_id,
        "brokerName": broker_name,
        "asOf": _iso(as_of_ms),
        "asOfMs": as_of_ms,
        "inUse": positions.open_or_killed,
        "complete": skipped.complete,
        "skippedCount": skipped.count,
        "skippedBytes": skipped.bytes_count,
        "skipped": [
            {
                "file": each.file, "position": each.position, "offset": each.offset, "lostBytes": each.lost_bytes,
                "reason": each.reason, "atEnd": each.at_end,
            }
            for each in skipped.first
        ],
    }  # fmt: skip


def totals(found: Aggregates) -> dict[str, Any]:
    """Return the totals of the store."""
    segments = found.rows("segments")
    stored = [each[name] for each in segments for name in ("first_stored", "last_stored") if each[name] is not None]
    return {
        "messages": sum(each["messages"] for each in segments),
        "bytes": sum(each["bytes"] for each in segments),
        "topics": found.topics,
        "segments": len(segments),
        "firstStored": _value(min(stored, default=None)),
        "lastStored": _value(max(stored, default=None)),
    }


def of_compaction(
    found: Aggregates,
    positions: Positions,
    options: compaction.CompactionOptions,
    min_dead_ratio: float,
    unread: Iterable[int] = (),
) -> dict[str, Any]:
    """Return live, dead and reclaimable bytes with reasons, and the plan, which keeps the segments `unread`."""
    sums = [
        Sum(
            segment=row["segment"], dead=row["dead"], reason=row["reason"], messages=row["messages"],
            bytes=row["bytes"], last_due_ms=_milliseconds(row["last_due"]), replayable=row["replayable"],
        )
        for row in found.rows("reasons")
    ]  # fmt: skip
    proofs = [
        Proof(segment=row["segment"], origin_segment=row["origin_segment"], bytes=row["bytes"])
        for row in found.rows("proofs")
    ]
    plan = make_plan(
        sums, positions.segments, min_dead_ratio=min_dead_ratio, unread=frozenset(unread), proofs=proofs
    )  # fmt: skip
    dead, replayable = (sum(each.bytes for each in sums if of(each)) for of in (_is_dead, _is_replayable))
    groups = lags(positions)
    return {
        "liveBytes": sum(each.bytes for each in sums if not each.dead),
        "deadBytes": dead,
        "settledBytes": dead - replayable,
        "replayableBytes": replayable,
        "reclaimableBytes": plan.reclaimable_bytes,
        "copiedBytes": plan.copied_bytes,
        "pinnedBytes": plan.pinned_bytes,
        "retentionHours": options.retention_hours,
        "keyedTopics": sorted(options.keyed_topics),
        "minDeadRatio": min_dead_ratio,
        "dead": _by_reason(sums, compaction.DEAD_REASONS),
        "live": _by_reason(sums, compaction.LIVE_REASONS),
        "topics": _rows(found.rows("dead_topics")),
        "groups": [
            {
                "topic": each.topic, "group": each.group, "lag": each.lag, "queues": each.queues,
                "unreadQueues": each.unread_queues,
            }
            for each in groups[:MAX_ROWS]
        ],
        "groupCount": len(groups),
        **_of_plan(plan),
    }  # fmt: skip


def of_delay(found: Aggregates, as_of_ms: int, promise_p99_ms: int, complete: bool) -> dict[str, Any]:
    """Return delivery lateness and the guarantees. `complete`: whether nothing of the store was skipped."""
    nothing = dict.fromkeys(_FATES, 0) | dict.fromkeys(_LATENESS)
    (whole,) = _late(found.rows("whole")) or _late([nothing])
    waiting = sorted(found.rows("waiting"), key=_by_level_and_due)
    first_due_ms = min((_milliseconds(row["first_due"]) or 0 for row in waiting if row["first_due"]), default=None)
    overdue = sum(row["messages"] for row in waiting if row["due"] == "overdue")
    hours = [row | {"number": _iso(row["number"] // 1000)} for row in reversed(found.rows("late_hours"))]
    return {
        **{name: value for name, value in whole.items() if not name.endswith("Ms")},
        "overdue": overdue,
        "nextDue": _iso(first_due_ms),
        "oldestOverdueMs": as_of_ms - first_due_ms if overdue and first_due_ms is not None else None,
        "lateness": {name: value for name, value in whole.items() if name.endswith("Ms")},
        "worstLatenessMs": whole["maxMs"],
        "lossesCertain": complete,
        "promises": _promises(whole, promise_p99_ms),
        "histogram": _without_gaps(found.rows("histogram"), "from_ms", (-1, *LATENESS_EDGES_MS), ("messages",)),
        "byLevel": _late(found.rows("levels"), level="number"),
        "byTopic": _late(found.rows("late_topics"), topic="name"),
        "byHour": _late(hours, hour="number"),
        "pendingByDue": _rows(waiting),
        "pendingByTopic": [
            {"topic": row["topic"], "pending": row["pending"], "due": {name: row[name] for name in DUE_IN}}
            for row in found.rows("coming")
        ],
        "offenders": _rows([{name: row[name] for name in OFFENDERS} for row in found.rows("offenders")]),
    }


def of_traffic(found: Aggregates) -> dict[str, Any]:
    """Return the traffic."""
    hours = sorted(found.rows("hours"), key=lambda row: _milliseconds(row["hour"]) or 0)
    powers = (0, *(1 << power for power in range(64)))
    return {
        "topTopics": _rows(found.rows("top_topics")),
        "kinds": _rows(sorted(found.rows("kinds"), key=lambda row: str(row["kind"]))),
        "byHour": _rows(hours[-MAX_HOURS:]),
        "sizes": _without_gaps(found.rows("sizes"), "from_bytes", powers, ("messages", "bytes")),
        "hotKeys": _rows(found.rows("hot_keys")),
        "failures": _rows(found.rows("failures")),
    }


def _by_level_and_due(row: Mapping[str, Any]) -> tuple[bool, int, int]:
    """Timed messages, which have no level, come last."""
    return row["level"] is None, row["level"] or 0, _milliseconds(row["first_due"]) or 0


def _is_dead(each: Sum) -> bool:
    return each.dead


def _is_replayable(each: Sum) -> bool:
    return each.replayable


def _late(rows: Sequence[Mapping[str, Any]], **keys: str) -> list[dict[str, Any]]:
    """Return rows of `delay.lateness`; of the columns that name the group, only `keys` are kept, renamed."""
    names = {**keys, **{name: name for name in (*_FATES, *_LATENESS)}}
    return _rows([{shown: row[name] for shown, name in names.items()} for row in rows])


def _without_gaps(
    rows: Sequence[Mapping[str, Any]], name: str, edges: Sequence[int], counts: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the buckets from the first to the last non-empty one, including empty ones between them."""
    there = {row[name]: row for row in rows}
    if not there:
        return []
    low, high = edges.index(min(there)), edges.index(max(there))
    return _rows([there.get(edge, {name: edge, **dict.fromkeys(counts, 0)}) for edge in edges[low : high + 1]])


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
        "reclaimedBytes": each.reclaimed_bytes, "copiedBytes": each.copied_bytes, "keptBytes": each.kept_bytes,
        "replayableBytes": each.replayable_bytes, "pinningMessages": each.pinning_messages,
        "pinningBytes": each.pinning_bytes, "lastDue": _iso(each.last_due_ms), "onlyPinned": each.only_pinned,
        "fileBytes": each.file_bytes,
    }  # fmt: skip


def _by_reason(sums: Sequence[Sum], reasons: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for reason in reasons:
        of_reason = [each for each in sums if each.reason == reason]
        if of_reason:
            messages, size = sum(each.messages for each in of_reason), sum(each.bytes for each in of_reason)
            found.append({"reason": reason, "messages": messages, "bytes": size})
    return found


def _rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as JSON values, in camelCase."""
    return [{_camel(name): _value(value) for name, value in row.items()} for row in rows]


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return _iso(_milliseconds(value))
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    return value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word[0].upper() + word[1:] for word in others)


def _milliseconds(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


def _iso(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None
