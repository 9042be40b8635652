"""Schedules of repeating messages, as text."""

from __future__ import annotations

from typing import Any

from delaymq.cli.terminal.times import format_time
from delaymq.message.levels import delay_text


def schedule_text(repeats: dict[str, Any] | None) -> str:
    """Return the schedule in a response of the HTTP API, such as `0 9 * * 1-5 Europe/Berlin`; empty for None."""
    if repeats is None:
        return ""
    if repeats["cron"] is not None:
        return f"{repeats['cron']} {repeats['zone']}"
    return f"every {delay_text(repeats['everyMs'])}" if repeats["everyMs"] else "an unknown interval"


def schedule_line(repeats: dict[str, Any], due_ms: int | None, *, is_pending: bool) -> str:
    """Return a line with the whole schedule, the last run and the next one, at `due_ms` if the message is pending."""
    parts = [f"repeats {schedule_text(repeats)}"]
    if repeats["untilMs"] is not None:
        parts.append(f"until {format_time(repeats['untilMs'])}")
    run = "an unknown number of" if repeats["run"] is None else str(repeats["run"])
    parts.append(f"{run} runs so far" if repeats["runs"] is None else f"{run} of {repeats['runs']} runs so far")
    if repeats["lastRunMs"] is not None:
        parts.append(f"the last at {format_time(repeats['lastRunMs'])}")
    if is_pending:
        parts.append(f"the next at {format_time(due_ms)}")
    if repeats["missed"] != "latest":
        parts.append(f"missed runs: {repeats['missed']}")
    return ", ".join(parts)
