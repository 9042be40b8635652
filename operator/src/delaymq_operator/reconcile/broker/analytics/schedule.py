"""Due times of scheduled runs: cron expressions in a time zone. Pure; times are ms since the epoch.

Daylight saving time is handled as in cron: an expression with a fixed hour is due once in a repeated hour, and
immediately after a skipped hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import takewhile
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
}
MAX_LINE_CHARS: Final = 200
"""Maximum length of an expression, which limits the parsing work."""
_FIELDS: Final = 5
_CACHED_LINES: Final = 1_000
_WINDOWS: Final = (timedelta(hours=1), timedelta(days=1), timedelta(days=40), timedelta(days=400))
"""Windows searched for the latest missed time, the most recent first: a schedule may be due every minute."""


class ScheduleError(Exception):
    """An invalid schedule; the message names the field and states what to write."""


@lru_cache(maxsize=_CACHED_LINES)
def next_time_ms(line: str, zone: str, after_ms: int) -> int:
    """Return the first due time after `after_ms`. ScheduleError if the expression or the time zone is invalid, or it
    is never due.
    """
    found = next(_times(line, _zone(zone), _instant(after_ms)), None)
    if found is None:
        raise ScheduleError(f"spec.analytics.schedule {line!r} is never due: use a date that exists")
    return _ms(found)


def latest_time_ms(line: str, zone: str, first_ms: int, now_ms: int) -> int | None:
    """Return the last due time from `first_ms` to `now_ms`, both inclusive; None if there is none. ScheduleError."""
    known_zone, first, now = _zone(zone), _instant(first_ms), _instant(now_ms)
    starts = [now - window for window in _WINDOWS if now - window > first]
    for start in [*starts, first - timedelta(seconds=1)]:
        found = deque(takewhile(lambda time: time <= now, _times(line, known_zone, start)), maxlen=1)
        if found:
            return _ms(found[0])
    return None


def _times(line: str, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    """Yield all due times after a time, ascending, in UTC."""
    last = after
    for found in _cron(line, after.astimezone(zone)):
        time = found.astimezone(UTC)
        # In an hour that is repeated or skipped by a clock change, the library may yield the same time twice.
        if time > last:
            last = time
            yield time


def _cron(line: str, start: datetime) -> CronSim:
    fields = MACROS.get(line.strip().lower(), line).split()
    what = f"spec.analytics.schedule {line[:MAX_LINE_CHARS]!r}"
    if len(line) > MAX_LINE_CHARS:
        raise ScheduleError(f"{what} … is longer than {MAX_LINE_CHARS} characters: use a shorter schedule")
    if len(fields) != _FIELDS:
        macros = ", ".join(MACROS)
        raise ScheduleError(
            f"{what} has {len(fields)} fields: use minute, hour, day, month and weekday, such as 0 3 * * *, or one "
            f"of {macros}"
        )
    try:
        return CronSim(" ".join(fields), start)
    except CronSimError as error:
        problem = str(error).removeprefix("Bad ")
        raise ScheduleError(f"{what} has an invalid {problem}: use a value like 0 3 * * *") from error


def _zone(name: str) -> tzinfo:
    if name in ("UTC", "Etc/UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        # Raised for a directory of zones, a path outside the zones, and an unknown zone.
        what = f"spec.analytics.timeZone {name[:MAX_LINE_CHARS]!r} is not a time zone"
        raise ScheduleError(f"{what}: use an IANA name, such as Europe/Berlin") from error


def _instant(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC)


def _ms(at: datetime) -> int:
    return int(at.timestamp()) * 1000
