"""Human-readable numbers and times, and a short summary for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

REASONS = {
    "filler": "filler over damaged bytes",
    "delivered": "delayed, since delivered",
    "withdrawn": "delayed, dropped or cancelled",
    "replaced": "delayed, pending in a later record",
    "transaction_settled": "transaction settled",
    "mark_obsolete": "mark of a deleted message",
    "topic_deleted": "topic deleted",
    "consumed": "read by every group",
    "superseded": "superseded by a newer message",
    "expired": "older than the retention time",
    "pending": "delayed, pending",
    "lost": "delayed, lost",
    "half_pending": "transaction open",
    "operation_needed": "end of a transaction, still needed",
    "mark_needed": "mark, still needed",
    "unread": "not yet read by a group",
    "retained": "within the retention time, read by no group",
}
SHOWN_GROUPS = 5
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def printable(text: object) -> str:
    """Return an external name without control characters and line breaks."""
    return "".join(c if c.isprintable() else "�" for c in str(text))


def size(count: float | None) -> str:
    """`1.5 MiB`."""
    if count is None:
        return "–"
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    if unit == 0 and value != int(value) and value < 10:
        return f"{value:.1f} B"
    return f"{value:,.0f} {_UNITS[unit]}" if unit == 0 or abs(value) >= 100 else f"{value:,.1f} {_UNITS[unit]}"


def number(value: float | None) -> str:
    """`12,345`, `1.25`, or a dash."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def counted(count: int, one: str) -> str:
    """`1 segment`, `12,345 segments`."""
    return f"{number(count)} {one}" if count == 1 else f"{number(count)} {one}s"


def duration(value_ms: float | None) -> str:
    """`350 ms`, `12.3 s`, `5 min`, `2.0 h`, `3.1 d`."""
    if value_ms is None:
        return "–"
    for limit_ms, unit_ms, unit in ((1_000, 1, "ms"), (60_000, 1_000, "s"), (3_600_000, 60_000, "min"),
                                    (86_400_000, 3_600_000, "h")):  # fmt: skip
        if abs(value_ms) < limit_ms:
            return f"{value_ms / unit_ms:.0f} {unit}" if unit == "ms" else f"{value_ms / unit_ms:.1f} {unit}"
    return f"{value_ms / 86_400_000:.1f} d"


def level_of(level: int | None) -> str:
    """`level 3`, or `timed`."""
    return "timed" if level is None else f"level {level}"


def moment(iso: str | None) -> str:
    """`2026-01-31 08:00:00 UTC`, or a dash."""
    return "–" if iso is None else f"{iso[:19].replace('T', ' ')} UTC"


def share(part: float, whole: float) -> str:
    """`37 %`."""
    return f"{100 * part / whole:.0f} %" if whole else "–"


def headline(summary: dict[str, Any]) -> list[str]:
    """Return the summary of all jobs in two or three sentences."""
    totals, compaction, delay = summary["totals"], summary["compaction"], summary["delay"]
    if not totals["messages"]:
        return ["The store is empty."]
    dead = compaction["deadBytes"]
    found = [
        f"{share(dead, totals['bytes'])} of {size(totals['bytes'])} is dead."
        if dead
        else f"All of {size(totals['bytes'])} is live."
    ]
    if compaction["reclaimableBytes"]:
        copied = f" by copying {size(compaction['copiedBytes'])}" if compaction["copiedBytes"] else " without copying"
        found[-1] = f"{found[-1][:-1]}; compaction would reclaim {size(compaction['reclaimableBytes'])}{copied}."
    if delay["delivered"]:
        p99, worst = duration(delay["lateness"]["p99Ms"]), duration(delay["worstLatenessMs"])
        late = f"99 % at most {p99} late, at worst {worst}"
        found.append(f"{number(delay['delivered'])} delayed messages were delivered, {late}.")
    broken = [
        f"{number(delay[name])} {word}"
        for name, word in (
            ("lost", "lost" if delay["lossesCertain"] else "lost at most (parts were skipped)"),
            ("early", "early"),
            ("duplicates", "delivered twice"),
        )
        if delay[name]
    ]
    if broken:
        found.append(f"{', '.join(broken)}.")
    elif delay["messages"]:
        found.append("No message was lost, early or delivered twice.")
    return found


def lines(summary: dict[str, Any], out: Path | None) -> list[str]:
    """Return the summary for a terminal."""
    totals = summary["totals"]
    found = [
        f"{printable(summary['store'])}: {counted(totals['messages'], 'message')}, {size(totals['bytes'])}, "
        f"{counted(totals['topics'], 'topic')}, {counted(totals['segments'], 'segment')}"
    ]
    if compaction := summary.get("compaction"):
        found.append(
            f"dead {size(compaction['deadBytes'])} ({share(compaction['deadBytes'], totals['bytes'])}), live "
            f"{size(compaction['liveBytes'])}; the plan reclaims {size(compaction['reclaimableBytes'])} by copying "
            f"{size(compaction['copiedBytes'])}"
        )
        found += [f"  {REASONS[each['reason']]}: {size(each['bytes'])}" for each in compaction["dead"]]
        if compaction["deadBytes"]:
            found.append(
                f"of the dead bytes {size(compaction['settledBytes'])} are settled or expired,"
                f" {size(compaction['replayableBytes'])} consumed but still replayable"
            )
        behind = [each for each in compaction["groups"] if each["lag"]]
        found += [
            f"  group {printable(each['group'])} lags by {counted(each['lag'], 'message')} in"
            f" {printable(each['topic'])}"
            for each in behind[:SHOWN_GROUPS]
        ]
    if delay := summary.get("delay"):
        late = delay["lateness"]
        found.append(
            f"delays: {number(delay['delivered'])} delivered, {number(delay['pending'])} pending"
            f" ({number(delay['overdue'])} overdue), {number(delay['lost'])} lost, {number(delay['duplicates'])} twice,"
            f" {number(delay['early'])} early"
        )
        found.append(
            f"  late: p50 {duration(late['p50Ms'])}, p99 {duration(late['p99Ms'])}, at most {duration(late['maxMs'])}"
        )
    if traffic := summary.get("traffic"):
        found += [
            f"  {printable(each['topic'])}: {counted(each['messages'], 'message')}, {size(each['bytes'])}"
            for each in traffic["topTopics"][:5]
        ]
    if out is not None:
        file = out / ("report.html" if summary["job"] == "report" else "summary.json")
        found.append(f"written to {out}: open {file}")
    return found
