"""Result that a driver wrote to its ConfigMap. Pure."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, structs

from delaymq_operator.api.analytics import AnalyticsGroupStatus
from delaymq_operator.api.analytics_names import RESULT_REPORT_KEY, RESULT_STATUS_KEY
from delaymq_operator.api.resource import ApiStruct
from delaymq_operator.reconcile.broker.analytics.application_state import one_line
from delaymq_operator.reconcile.broker.analytics.reporting import MAX_LONG
from delaymq_operator.reconcile.ports import Manifest

FORMAT_VERSION: Final = 1
MAX_STATUS_CHARS: Final = 65_536
"""Maximum length of a valid status, which has at most 16 KiB."""
_MAX_LATENESS_MS: Final = float(1 << 52)

Count = Annotated[int, Meta(ge=0, le=MAX_LONG)] | None
Lateness = Annotated[float, Meta(ge=-_MAX_LATENESS_MS, le=_MAX_LATENESS_MS)] | None


class ResultError(Exception):
    """There is no result, or it reports a failure; the message is a sentence."""


class Result(ApiStruct, frozen=True, kw_only=True):
    """Contents of status.json; docs/analytics.md documents the figures."""

    format_version: int
    error: str | None = None
    complete: bool | None = None
    skipped_count: Count = None
    messages: Count = None
    total_bytes: Count = None
    live_bytes: Count = None
    dead_bytes: Count = None
    reclaimable_bytes: Count = None
    pending: Count = None
    delivered: Count = None
    lost: Count = None
    duplicates: Count = None
    early: Count = None
    worst_lateness_ms: Lateness = None
    p99_lateness_ms: Lateness = None
    report_omitted: str | None = None


class _Version(ApiStruct, frozen=True, kw_only=True):
    format_version: int


def result_of(config_map: Manifest | None, name: str) -> Result:
    """Return the result of a successful run. ResultError if there is none."""
    text = ((config_map or {}).get("data") or {}).get(RESULT_STATUS_KEY)
    where = f"ConfigMap {name}"
    if not isinstance(text, str):
        what = "no longer exists" if config_map is None else f"has no {RESULT_STATUS_KEY}"
        raise ResultError(f"{where} {what}: see the driver's log")
    if len(text) > MAX_STATUS_CHARS:
        raise ResultError(
            f"{RESULT_STATUS_KEY} in {where} has more than {MAX_STATUS_CHARS} characters: see the driver's log"
        )
    try:
        version = msgspec.json.decode(text, type=_Version).format_version
        if version > FORMAT_VERSION:
            raise ResultError(
                f"{RESULT_STATUS_KEY} in {where} has format version {version}, written by a newer delaymq-spark; "
                f"this operator reads {FORMAT_VERSION}: upgrade the operator, or set spec.analytics.image to an "
                "older image"
            )
        found = msgspec.json.decode(text, type=Result)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ResultError(f"{RESULT_STATUS_KEY} in {where} cannot be read: {one_line(error)}") from error
    if found.error:
        raise ResultError(one_line(found.error))
    return found


def has_report(config_map: Manifest | None) -> bool:
    """Return whether the result contains the HTML report, which can be too large."""
    return RESULT_REPORT_KEY in ((config_map or {}).get("binaryData") or {})


def _whole(ms: float | None) -> int | None:
    return None if ms is None else round(ms)


def with_figures(entry: AnalyticsGroupStatus, result: Result, report: str | None) -> AnalyticsGroupStatus:
    """Return a group's figures from this result; `report`: the ConfigMap with the report."""
    return structs.replace(
        entry,
        messages=result.messages,
        total_bytes=result.total_bytes,
        live_bytes=result.live_bytes,
        dead_bytes=result.dead_bytes,
        reclaimable_bytes=result.reclaimable_bytes,
        pending=result.pending,
        delivered=result.delivered,
        lost=result.lost,
        duplicates=result.duplicates,
        early=result.early,
        worst_lateness_ms=_whole(result.worst_lateness_ms),
        p99_lateness_ms=_whole(result.p99_lateness_ms),
        complete=result.complete,
        skipped=result.skipped_count,
        report=report,
    )
