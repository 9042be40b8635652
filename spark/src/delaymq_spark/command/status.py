"""`status.json`: a run's result in a few figures, for its initiator (docs/analytics.md, "Publishing").

Pure: converts the summary, or an error, to a text below 16 KiB.
"""

from __future__ import annotations

import json
from typing import Any

FORMAT_VERSION = 1
MAX_STATUS_BYTES = 16 << 10
_MAX_TEXT = 1_000
"""Maximum characters of a sentence, each at most 6 bytes in JSON, so that all sentences fit."""
_MAX_NAME = 128
_FIGURES = (
    "skippedCount", "skippedBytes", "messages", "totalBytes", "liveBytes", "deadBytes", "reclaimableBytes", "pending",
    "delivered", "lost", "lossesCertain", "duplicates", "early", "worstLatenessMs", "p99LatenessMs",
)  # fmt: skip


def of_summary(summary: dict[str, Any], completed_at_ms: int, report_omitted: str | None) -> dict[str, Any]:
    """Return the status of a completed run; `summary` is that of the job `report`."""
    compaction, delay = summary["compaction"], summary["delay"]
    return {
        **_head(summary["storeId"], summary["brokerName"], summary["asOfMs"], completed_at_ms, summary["durationMs"]),
        "complete": summary["complete"],
        "skippedCount": summary["skippedCount"],
        "skippedBytes": summary["skippedBytes"],
        "messages": summary["totals"]["messages"],
        "totalBytes": summary["totals"]["bytes"],
        "liveBytes": compaction["liveBytes"],
        "deadBytes": compaction["deadBytes"],
        "reclaimableBytes": compaction["reclaimableBytes"],
        "pending": delay["pending"],
        "delivered": delay["delivered"],
        "lost": delay["lost"],
        "lossesCertain": delay["lossesCertain"],
        "duplicates": delay["duplicates"],
        "early": delay["early"],
        "worstLatenessMs": delay["worstLatenessMs"],
        "p99LatenessMs": delay["lateness"]["p99Ms"],
        "reportOmitted": _short(report_omitted, _MAX_TEXT),
        "error": None,
    }


def of_failure(
    error: str, *, as_of_ms: int, completed_at_ms: int, duration_ms: int, store_id: str | None, broker_name: str | None
) -> dict[str, Any]:
    """Return the status of a failed run: a sentence, and null for every figure."""
    return {
        **_head(store_id, broker_name, as_of_ms, completed_at_ms, duration_ms),
        "complete": False,
        **dict.fromkeys(_FIGURES),
        "reportOmitted": None,
        "error": _short(error, _MAX_TEXT),
    }


def as_text(status: dict[str, Any]) -> str:
    """Return the status as JSON, below MAX_STATUS_BYTES."""
    return json.dumps(status, ensure_ascii=True, allow_nan=False, indent=1)


def _head(
    store_id: str | None, broker_name: str | None, as_of_ms: int, completed_at_ms: int, duration_ms: int
) -> dict[str, Any]:
    return {
        "formatVersion": FORMAT_VERSION,
        "storeId": _short(store_id, _MAX_NAME),
        "brokerName": _short(broker_name, _MAX_NAME),
        "asOfMs": as_of_ms,
        "completedAtMs": completed_at_ms,
        "durationMs": duration_ms,
    }


def _short(text: str | None, limit: int) -> str | None:
    if text is None:
        return None
    # Only characters up to U+FFFF: others take two escapes in JSON.
    clean = "".join(c if c.isprintable() and c <= "\uffff" else "�" for c in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
