"""status.json: figures from the summary, null figures for failed runs, and bounded size."""

from __future__ import annotations

import json
from typing import Any

import pytest
from delaymq_spark.command import status

pytestmark = pytest.mark.core

SUMMARY: dict[str, Any] = {
    "storeId": "id", "brokerName": "orders-0", "asOfMs": 5, "durationMs": 7, "complete": False, "skippedCount": 2,
    "skippedBytes": 30, "totals": {"messages": 11, "bytes": 100},
    "compaction": {"liveBytes": 60, "deadBytes": 40, "reclaimableBytes": 35},
    "delay": {"pending": 1, "delivered": 2, "lost": 3, "lossesCertain": False, "duplicates": 4, "early": 5,
              "worstLatenessMs": 6, "lateness": {"p50Ms": 1, "p99Ms": 8}},
}  # fmt: skip
EXPECTED = {
    "formatVersion": 1, "storeId": "id", "brokerName": "orders-0", "asOfMs": 5, "completedAtMs": 12, "durationMs": 7,
    "complete": False, "skippedCount": 2, "skippedBytes": 30, "messages": 11, "totalBytes": 100, "liveBytes": 60,
    "deadBytes": 40, "reclaimableBytes": 35, "pending": 1, "delivered": 2, "lost": 3, "lossesCertain": False,
    "duplicates": 4, "early": 5, "worstLatenessMs": 6, "p99LatenessMs": 8, "reportOmitted": "too large", "error": None,
}  # fmt: skip


def test_each_figure_comes_from_its_field_in_the_summary() -> None:
    assert status.of_summary(SUMMARY, 12, "too large") == EXPECTED


def test_failure_has_the_same_fields_without_figures() -> None:
    failed = status.of_failure(
        "no store", as_of_ms=5, completed_at_ms=12, duration_ms=7, store_id=None, broker_name="orders-0"
    )
    assert failed.keys() == EXPECTED.keys()
    told = {"formatVersion", "brokerName", "asOfMs", "completedAtMs", "durationMs", "complete", "error"}
    assert {name for name, value in failed.items() if value is not None} == told
    assert (failed["complete"], failed["error"]) == (False, "no store")


def test_status_stays_small_and_printable_for_any_error() -> None:
    for character in ("x", "\x00", "😀", "字", '"', "\n"):
        name = character * 10_000
        failed = status.of_failure(
            name, as_of_ms=10**15, completed_at_ms=10**15, duration_ms=10**12, store_id=name, broker_name=name
        )
        text = status.as_text(failed)
        assert len(text.encode()) <= status.MAX_STATUS_BYTES
        assert json.loads(text)["error"].isprintable()
