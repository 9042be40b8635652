"""Parsing and formatting of times."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.message.errors import LevelTableError
from delaymq.message.levels import parse_delay_ms

_AGO: Final = re.compile(r"\s*((?:\d+\s*[a-z]+\s*)+)ago\s*\Z", re.IGNORECASE)
_IN: Final = re.compile(r"in\s+((?:\d+\s*[a-z]+\s*)+)\Z", re.IGNORECASE)
_PART: Final = re.compile(r"(\d+)\s*([a-z]+)", re.IGNORECASE)
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MS: Final = 253_402_214_400_000
"""Before the year 10000, which Python's datetime does not support."""
HOW_DUE: Final = "use 2027-01-31T12:00+01:00 or 2027-01-31T11:00Z"
HOW: Final = "use 2026-01-31T12:00 (local time), 2026-01-31T12:00+01:00, '10m ago', 'in 2h', now, or ms since 1970"


def parse_time(text: str, now_ms: int | None = None) -> int:
    """Return the ms since 1970 of an ISO time (local without an offset), `10m ago`, `in 2h`, `now`, or a number."""
    now = round(time.time() * 1000) if now_ms is None else now_ms
    word = text.strip()
    if word.lower() == "now":
        return now
    if word.isascii() and word.isdigit():
        return _checked(int(word[:20]), text)
    for pattern, sign in ((_AGO, -1), (_IN, 1)):
        span = pattern.match(word)
        parts = [] if span is None else [(int(number[:15]), unit.lower()) for number, unit in _PART.findall(span[1])]
        if parts and all(unit in _UNITS_MS for _, unit in parts):
            return _checked(now + sign * sum(number * _UNITS_MS[unit] for number, unit in parts), text)
    try:
        return _checked(round(datetime.fromisoformat(word).timestamp() * 1000), text)
    except (ValueError, OverflowError, OSError) as error:
        raise CommandError(f"{text!r} is not a time: {HOW}", EXIT_USAGE) from error


def parse_due_time(text: str) -> datetime:
    """Parse an ISO time with an offset or Z. CommandError, which shows the local offset, for a time without one."""
    word = text.strip()
    try:
        at = datetime.fromisoformat(word)
        if at.utcoffset() is not None:
            if at < _EPOCH:
                raise CommandError(f"{text[:60]!r} is before 1970: use a later due time", EXIT_USAGE)
            return at
        local = at.astimezone().isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise CommandError(f"{text[:60]!r} is not a due time: {HOW_DUE}", EXIT_USAGE) from error
    raise CommandError(
        f"{text[:60]!r} has no offset from UTC: use {local} for local time, or {at.isoformat()}Z", EXIT_USAGE
    )


def parse_delay_option(option: str, text: str) -> int:
    """Return the ms of a delay such as `10m`. CommandError, which names the option."""
    try:
        return parse_delay_ms(text)
    except LevelTableError as error:
        raise CommandError(f"{option}: {error}", EXIT_USAGE) from error


def _checked(ms: int, text: str) -> int:
    if not 0 <= ms < _MAX_MS:
        raise CommandError(f"{text!r} is out of range: {HOW}", EXIT_USAGE)
    return ms


def format_time(ms: int | None) -> str:
    """Format as `2026-01-31 12:00:00.250+01:00` (local time); empty for None, the number if it is out of range."""
    if ms is None:
        return ""
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def format_moment(ms: int, now_ms: int) -> str:
    """Format as `12:00:00.250` today, `2026-01-31 12:00:00.250` on any other day."""
    at = datetime.fromtimestamp(ms / 1000)
    day = "" if at.date() == datetime.fromtimestamp(now_ms / 1000).date() else f"{at:%Y-%m-%d} "
    return f"{day}{at:%H:%M:%S}.{at.microsecond // 1000:03}"


def format_clock(ms: int | None, now_ms: int) -> str:
    """Format as `12:00:00` today, else with the date, because a future time without a date would look past."""
    if ms is None:
        return ""
    try:
        at = datetime.fromtimestamp(ms / 1000)
        is_today = at.date() == datetime.fromtimestamp(now_ms / 1000).date()
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return at.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M")
