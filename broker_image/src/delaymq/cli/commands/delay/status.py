"""`delaymq delay status` and `delaymq delay pending`: pending delayed messages of a broker, over its HTTP API."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, HttpAddress, TokenFile
from delaymq.cli.target.contexts import target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, counted, duration, explain_bad_answers, print_json
from delaymq.cli.terminal.tables import table
from delaymq.cli.terminal.times import format_clock, parse_delay_option
from delaymq.message.levels import delay_text

SHOWN_BAR: Final = 40
"""Length of the longest bar of the due time chart, in characters."""
TIMED: Final = "timed"
"""In place of a level, for timed messages."""
INCOMPLETE: Final = (
    "the count is incomplete: the broker is still loading messages from before its start; try again later"
)


class Kind(StrEnum):
    """Kinds of delayed messages."""

    LEVEL = "level"
    TIMED = "timed"


class By(StrEnum):
    """Grouping of the counts of pending messages."""

    LEVEL = "level"
    TOPIC = "topic"
    DUE = "due"


def status(
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Include levels, and timed messages, that have not been used.")
    ] = False,
) -> None:
    """Show the pending messages, the next due time and the delivery lateness of each delay level and of timed messages.

    Example: delaymq delay status --http http://10.0.0.5:8080
    """
    api = HttpApi(target(http=http, token_file=token_file, context=context))
    answer = api.get("delay")
    if as_json:
        print_json(answer)
        return
    with explain_bad_answers(api.url, "delays"):
        out = console()
        levels, as_of_ms = answer["levels"], answer["asOfMs"]
        rows = [status_row(level, as_of_ms) for level in levels if everything or level["pending"] or level["offset"]]
        timed = answer.get("timed")
        if timed and (everything or is_used(timed)):
            rows.append(timed_row(timed, as_of_ms))
        if rows:
            out.print(table(STATUS_COLUMNS, rows, left=0))
        out.print(total_line(answer))
        for line in pause_lines(answer):
            out.print(line)
        for each in answer.get("corrected", ()):
            out.print(
                f"level {each['level']}: offset corrected from {each['from']} to {each['to']}"
                f" at startup ({each['reason']})",
            )


STATUS_COLUMNS: Final = ("level", "delay", "pending", "next due", "late p50", "p99", "max", "offset")


def status_row(level: dict[str, Any], as_of_ms: int) -> tuple[str, ...]:
    """Return one level of /api/v1/delay as the cells of STATUS_COLUMNS."""
    lateness = (level.get("lateness") or {}) if level["offset"] else {}  # no delivery yet, so no lateness
    late = [lateness.get(name) for name in ("p50Ms", "p99Ms", "maxMs")]
    number = str(level["level"]) if level.get("inTable", True) else f"{level['level']} (removed)"
    return (
        number,
        delay_text(level["delayMs"]) if level["delayMs"] else "",
        str(level["pending"]),
        format_clock(level["nextDueMs"], as_of_ms),
        *("" if each is None else duration(each) for each in late),
        f"{level['offset']}/{level['maxOffset']}",
    )


def is_used(timed: dict[str, Any]) -> bool:
    """Return whether `timed` of /api/v1/delay has anything to show."""
    return bool(timed["pending"] or timed["delivered"])


def timed_row(timed: dict[str, Any], as_of_ms: int) -> tuple[str, ...]:
    """Return `timed` of /api/v1/delay as the cells of STATUS_COLUMNS; timed messages have no delay and no offset."""
    late = [timed["lateness"][name] for name in ("p50Ms", "p99Ms", "maxMs")] if timed["delivered"] else []
    return (
        TIMED,
        "",
        str(timed["pending"]),
        format_clock(timed["nextDueMs"], as_of_ms),
        *([duration(each) for each in late] or [""] * 3),
        "",
    )


def total_line(answer: dict[str, Any]) -> str:
    """Return a line with the number of pending messages, the next due time, and whether deliveries are paused."""
    as_of_ms, timed = answer["asOfMs"], answer.get("timed")  # absent from older brokers
    parts = [*answer["levels"], *([timed] if timed else [])]
    pending = sum(part["pending"] for part in parts)
    dues = [part["nextDueMs"] for part in parts if part["nextDueMs"] is not None]
    when = f", next due in {duration(min(dues) - as_of_ms)}" if dues else ""
    if dues and min(dues) <= as_of_ms:
        when = f", next overdue by {duration(as_of_ms - min(dues))}" if min(dues) < as_of_ms else ", next due now"
    return f"{pending} pending{when}{_held(answer.get('held'))}"


def pause_lines(answer: dict[str, Any]) -> list[str]:
    """Return lines on the pauses of topics and groups; older brokers have none."""
    lines = []
    for each in answer.get("pauses", ()):
        if each["topic"] is None:
            continue  # the line with the total has this pause
        of_group = f"group {each['group']} of " if each["group"] is not None else ""
        by = f" by {each['by']}" if each["by"] else ""
        since = format_clock(each["sinceMs"], answer["asOfMs"])
        lines.append(f"{of_group}topic {each['topic']} is paused since {since}{by}: {each['pending']} pending")
    if answer.get("pausesTruncated"):
        lines.append("there are more pauses")
    return lines


def _held(held: dict[str, Any] | None) -> str:
    """Return a note on a pause, or on overdue messages that are being spread."""
    if not held:
        return ""
    if held["mode"] == "paused":
        return f"; deliveries are paused ({held['overdue']} overdue): resume deliveries with `delaymq delay resume`"
    if held["mode"] == "spread" and held["left"]:
        return f"; spreading {counted(held['left'], 'overdue message')} over time"
    return ""


def pending(
    by: Annotated[
        By, typer.Option(help="Count by delay level, with timed messages in one row, by topic, or by due time.")
    ] = By.LEVEL,
    level: Annotated[int | None, typer.Option(min=1, max=1_000, help="Only this level.")] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only messages with a level, or only timed messages.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only messages for this topic.")] = None,
    bucket: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time range of each row: 10s, 1m, 1h; default: automatic.")
    ] = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Count the pending messages of one broker by level, topic or due time.

    Examples: delaymq delay pending --by topic; delaymq delay pending --by due --bucket 1m
    """
    if level is not None and kind is Kind.TIMED:
        raise CommandError("--level cannot be combined with --kind timed: timed messages have no level", EXIT_USAGE)
    api = HttpApi(target(http=http, token_file=token_file, context=context))
    kind_name = None if kind is None else kind.value  # omitted unless requested: older brokers reject it
    bucket_ms = _bucket_ms(by, bucket)
    answer = api.get("delay/pending", by=by.value, level=level, kind=kind_name, topic=topic, bucketMs=bucket_ms)
    if as_json:
        print_json(answer)
        return
    with explain_bad_answers(api.url, "pending delays"):
        _show_counts(answer, by)


def _bucket_ms(by: By, bucket: str | None) -> int | None:
    if bucket is None:
        return None
    if by is not By.DUE:
        raise CommandError("--bucket requires --by due", EXIT_USAGE)
    return parse_delay_option("--bucket", bucket)


def _show_counts(answer: dict[str, Any], by: By) -> None:
    out, as_of_ms, rows = console(), answer["asOfMs"], answer["rows"]
    if by is By.DUE:
        most = max((row["pending"] for row in rows), default=1) or 1
        cells = [
            (
                _span(row, as_of_ms),
                str(row["pending"]),
                "█" * max(round(row["pending"] / most * SHOWN_BAR), 1 if row["pending"] else 0),
            )
            for row in rows
        ]
        shown = table(("due", "pending", ""), cells)
    else:
        cells = [
            (
                TIMED if row.get("timed") else str(row[by.value]),
                str(row["pending"]),
                format_clock(row["nextDueMs"], as_of_ms),
            )
            for row in rows
        ]
        shown = table((by.value, "pending", "next due"), cells)
    if rows:
        out.print(shown)
    out.print(f"{answer['total']} pending")
    if answer.get("truncated"):
        out.print("only the topics with the most pending messages are listed: select another with --topic")
    if not answer["complete"]:
        out.print(INCOMPLETE)


def _span(row: dict[str, Any], as_of_ms: int) -> str:
    """Return the range of due times of a row; the last row may be open-ended."""
    begin = format_clock(row["fromMs"], as_of_ms)
    return f"{begin} to {format_clock(row['toMs'], as_of_ms)}" if "toMs" in row else f"{begin} and later"
