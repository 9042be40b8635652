"""Summaries of the job `report` of any size and with unusual values, without a store."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any


def iso(hour: int) -> str:
    """Return a time a number of hours after the first."""
    return f"2026-{1 + hour // 720:02d}-{1 + hour // 24 % 30:02d}T{hour % 24:02d}:00:00.000Z"


def empty_summary() -> dict[str, Any]:
    """Return the summary of a store without messages."""
    counts = ("messages", "delivered", "pending", "withdrawn", "lost", "duplicates", "early", "overdue")
    return {
        "formatVersion": 1, "job": "report", "store": "/store", "storeId": None, "brokerName": None, "asOf": iso(0),
        "asOfMs": 0, "inUse": False, "complete": True, "skippedCount": 0, "skippedBytes": 0, "skipped": [],
        "durationMs": 1,
        "totals": {"messages": 0, "bytes": 0, "topics": 0, "segments": 0, "firstStored": None, "lastStored": None},
        "compaction": {
            "liveBytes": 0, "deadBytes": 0, "reclaimableBytes": 0, "copiedBytes": 0, "pinnedBytes": 0, "dead": [],
            "live": [], "topics": [], "plan": [], "planSegments": 0, "pins": [], "settledBytes": 0,
            "replayableBytes": 0, "groups": [], "groupCount": 0,
        },
        "delay": {
            **dict.fromkeys(counts, 0), "nextDue": None, "oldestOverdueMs": None, "worstLatenessMs": None,
            "lossesCertain": True,
            "lateness": {"p50Ms": None, "p90Ms": None, "p99Ms": None, "maxMs": None, "meanMs": None},
            "promises": [{"name": "nothing lost", "limit": 0, "found": 0, "kept": True},
                         {"name": "99 % within", "limit": 100, "found": None, "kept": None}],
            "histogram": [], "byLevel": [], "byTopic": [], "byHour": [], "pendingByDue": [], "pendingByTopic": [],
            "offenders": [],
        },
        "traffic": {"topTopics": [], "kinds": [], "byHour": [], "sizes": [], "hotKeys": [], "failures": []},
    }  # fmt: skip


def full_summary(
    *, segments: int = 30, hours: int = 72, topics: int = 12, names: Sequence[str] = ("Orders",)
) -> dict[str, Any]:
    """Return the summary of a store with data in every section; topics are named by `names` in turn and a number."""
    chance = random.Random(segments)
    found = json.loads(json.dumps(empty_summary()))
    plan = [
        {"order": n + 1, "segment": n << 30, "action": "rewrite", "messages": 10**6, "bytes": 1 << 30,
         "liveBytes": (live := chance.randrange(1 << 29)), "deadBytes": (1 << 30) - live, "fileBytes": 1 << 30,
         "reclaimedBytes": (1 << 30) - live, "copiedBytes": live, "pinningMessages": n % 3, "pinningBytes": live // 9,
         "lastDue": iso(n % 700), "onlyPinned": False, "keptBytes": 1 << 20, "replayableBytes": live // 7}
        for n in range(segments)
    ]  # fmt: skip
    names = [f"{names[n % len(names)]}-{n}" for n in range(topics)]
    dead, live = sum(each["deadBytes"] for each in plan), sum(each["liveBytes"] for each in plan)
    found["totals"] |= {"messages": segments * 10**6, "bytes": segments << 30, "topics": topics, "segments": segments,
                        "firstStored": iso(0), "lastStored": iso(hours)}  # fmt: skip
    found["compaction"] |= {
        "liveBytes": live, "deadBytes": dead, "reclaimableBytes": dead, "copiedBytes": live, "pinnedBytes": dead,
        "dead": [{"reason": "consumed", "messages": 9, "bytes": dead}],
        "live": [{"reason": "pending", "messages": 9, "bytes": live}],
        "topics": [{"topic": each, "messages": 5, "bytes": 10**9, "deadBytes": 10**8} for each in names],
        "settledBytes": dead - dead // 4, "replayableBytes": dead // 4, "groupCount": topics + 3,
        "groups": [{"topic": each, "group": f"g-{each}", "lag": 1_234, "queues": 8, "unreadQueues": 1}
                   for each in names],
        "plan": plan, "planSegments": segments, "pins": plan[: segments // 3],
    }  # fmt: skip
    levels = [*range(1, 19), None]
    late = {"messages": 100, "delivered": 90, "pending": 10, "withdrawn": 0, "lost": 1, "duplicates": 2, "early": 1,
            "p50Ms": 2, "p90Ms": 8, "p99Ms": 90, "maxMs": 70_000, "meanMs": 3.2}  # fmt: skip
    found["delay"] |= {name: late[name] for name in found["delay"].keys() & late.keys()}
    found["delay"] |= {
        "worstLatenessMs": 70_000, "lateness": {each: late[each] for each in late if each.endswith("Ms")},
        "histogram": [{"fromMs": edge, "messages": 10 + edge} for edge in (-1, 0, 1, 5, 100, 3_600_000)],
        "byLevel": [{"level": level, **late, "maxMs": 10 ** (level or 5)} for level in levels],
        "byTopic": [{"topic": each, **late} for each in names],
        "byHour": [{"hour": iso(hour), **late} for hour in range(hours)],
        "pendingByDue": [{"level": level, "due": due, "messages": level or 7, "bytes": 9, "firstDue": None,
                          "lastDue": None}
                         for level in levels for due in ("overdue", "next hour", "later")],
        "pendingByTopic": [{"topic": each, "pending": 15, "due": {"1m": 1, "10m": 2, "1h": 3, "1d": 4, "more": 5}}
                           for each in names],
        "offenders": [{"broken": "early", "level": levels[-1 - n % 2], "topic": each, "queueOffset": 5,
                       "physicalOffset": 9, "dueTime": None, "latenessMs": None, "copies": 0, "run": None}
                      for n, each in enumerate(names)],
    }  # fmt: skip
    found["traffic"] |= {
        "topTopics": [{"topic": each, "messages": 10**6, "bytes": 10**9, "bodyBytes": 10**9, "queues": 8, "skew": 1.25,
                       "peakHourMessages": 10**5} for each in names],
        "byHour": [{"hour": iso(hour), "messages": 10**5, "bytes": 10**8 + hour} for hour in range(hours)],
        "sizes": [{"fromBytes": 1 << power, "messages": 5 + power, "bytes": 9} for power in range(23)],
        "hotKeys": [{"topic": each, "keys": f"key of {each}", "messages": 10, "bytes": 99} for each in names],
        "failures": [{"group": each, "retries": 4, "deadLetters": 1, "bytes": 99} for each in names],
    }  # fmt: skip
    return found
