"""Times of a cron expression in a time zone.

The library cronsim parses expressions and finds matching wall-clock times. It also knows time zones, but loses runs
where clocks change by half an hour, so the rule of Debian's cron for changes of the clock is applied here:

- Expressions with fixed seconds, minutes and hours, that is, none of these fields begins with `*`, run once for each
  matching wall-clock time. A time that does not exist runs at the change, and of one that occurs twice, the first
  occurrence counts.
- All other expressions run whenever the clock shows a matching time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from delaymq.message import names
from delaymq.message.errors import IllegalMessageError

MAX_CHARACTERS: Final = 128
"""Longest expression. It bounds the time that parsing takes."""
_FIELDS: Final = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
_RANGES: Final = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L or LW",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 or SUN to SAT",
}
_HARMLESS: Final = "*"
"""Replaces all other fields while one of them is checked."""
_ALLOWED: Final = re.compile(r"[A-Za-z0-9*,/#\- ]*\Z")
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+\-]*(/[A-Za-z0-9_+\-]+)*\Z")
_MAX_ZONE_CHARACTERS: Final = 64
_NOT_IN_DATABASE: Final = ("posix/", "right/", "localtime", "posixrules")
"""Files next to those of the database, whose times differ or depend on the machine."""
_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_BETWEEN_CHANGES: Final = timedelta(days=7)
"""Changes of the clock are at least this far apart."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Cron:
    """A cron expression in a time zone. Immutable."""

    def __init__(self, expression: str, zone: str = "UTC") -> None:
        """Parse an expression of 5 fields, or 6 with seconds first. IllegalMessageError names the wrong field."""
        self.expression = expression
        self._zone = _zone_of(zone)
        fields = _checked(expression)
        self.least_gap_ms = 60_000 if len(fields) == 5 else 1_000
        """Minimum time between two runs."""
        timed = fields[:-3]
        self._is_fixed = not any(field.startswith("*") for field in timed)

    def next_after(self, time_ms: int) -> int | None:
        """Return the first run after a time in ms since the epoch; None if there is none within some 50 years."""
        try:
            time = _EPOCH + timedelta(seconds=time_ms // 1_000)
            found = self._fixed(time) if self._is_fixed else self._any(time)
        except (OverflowError, ValueError):
            return None  # beyond the year 9999
        return None if found is None else (found - _EPOCH) // _SECOND * 1_000

    def latest(self, first_ms: int, until_ms: int) -> int:
        """Return the last run at or before `until_ms`; `first_ms` is an earlier run."""
        latest_ms, low, high, window_ms = first_ms, first_ms, until_ms, self.least_gap_ms
        while until_ms - window_ms > low:
            found = self.next_after(until_ms - window_ms)
            if found is not None and found <= until_ms:
                latest_ms = low = found
                break
            high = until_ms - window_ms
            window_ms *= 4
        while low < high and latest_ms + self.least_gap_ms <= until_ms:
            middle = (low + high) // 2
            following = self.next_after(middle)
            if following is not None and following <= until_ms:
                latest_ms = low = following
            else:
                high = middle
        return latest_ms

    def count(self, after_ms: int, until_ms: int, most: int) -> int:
        """Return the number of runs after a time and up to another one, at most `most`.

        Repeated and missing hours are not counted exactly.
        """
        try:
            walls = [_local(_EPOCH + timedelta(milliseconds=each), self._zone) for each in (after_ms, until_ms)]
            runs = takewhile(lambda wall: wall <= walls[1], self._walls(walls[0]))
            return sum(1 for _ in islice(runs, most))
        except (OverflowError, ValueError):
            return 0

    def before(self, time_ms: int, count: int, least_ms: int) -> int:
        """Return about the `count`th run before a time, or `least_ms` if that is later.

        Repeated and missing hours are not counted exactly.
        """
        zone = self._zone
        least = _local(_EPOCH + timedelta(milliseconds=least_ms), zone)
        wall = _local(_EPOCH + timedelta(milliseconds=time_ms), zone)
        try:
            runs = CronSim(self.expression, wall, reverse=True)
            for _ in range(count):
                wall = next(runs)
                if wall <= least:
                    return least_ms
        except (StopIteration, OverflowError, ValueError):
            return least_ms
        return max((_instant(wall, zone) - _EPOCH) // _SECOND * 1_000, least_ms)

    def _walls(self, after: datetime) -> Iterator[datetime]:
        """Yield the matching wall-clock times after one."""
        return CronSim(self.expression, after)

    def _fixed(self, time: datetime) -> datetime | None:
        zone = self._zone
        wall = _local(time, zone)
        if time.astimezone(zone).fold:
            # What the clock shows for the second time is past.
            wall = wall.replace(second=0) + _MINUTE
            while _is_repeated(wall, zone):
                wall += _MINUTE
            wall -= _SECOND
        for match in self._walls(wall):
            run = _instant(match, zone)
            if run > time:
                return run
        return None

    def _any(self, time: datetime) -> datetime | None:
        zone = self._zone
        offset = _offset(time, zone)
        wall = (time + offset).replace(tzinfo=None)
        while True:
            match = next(self._walls(wall), None)
            if match is None:
                return None
            run = match.replace(tzinfo=UTC) - offset
            change = _first_change(time, run, zone)
            if change is None:
                return run
            time, offset = change, _offset(change, zone)
            wall = (change + offset - _SECOND).replace(tzinfo=None)


@lru_cache(maxsize=1_024)
def cron_of(expression: str, zone: str) -> Cron:
    """Return a parsed expression. IllegalMessageError."""
    return Cron(expression, zone)


def _checked(expression: str) -> list[str]:
    """Return the fields of an expression that cronsim accepts. IllegalMessageError."""
    if len(expression) > MAX_CHARACTERS:
        raise IllegalMessageError(
            f"{names.DELAY_CRON} has {len(expression)} characters: use at most {MAX_CHARACTERS} characters"
        )
    if _ALLOWED.match(expression) is None:
        raise IllegalMessageError(
            f"{names.DELAY_CRON} is {expression!r}: use letters, digits and the characters * , - / # between spaces"
        )
    fields = expression.split()
    if len(fields) not in (5, 6):
        raise IllegalMessageError(
            f"{names.DELAY_CRON} is {expression!r}, which has {len(fields)} fields: use 5 fields (minute, hour,"
            " day-of-month, month, day-of-week), or 6 with seconds first"
        )
    field_names = _FIELDS[-len(fields) :]
    for position, (name, field) in enumerate(zip(field_names, fields, strict=True)):
        alone = [_HARMLESS] * len(fields)
        alone[position] = field
        if not _is_accepted(" ".join(alone)):
            raise IllegalMessageError(
                f"field {position + 1} ({name}) of {names.DELAY_CRON} is {field!r}: use {_RANGES[name]}, or lists,"
                " ranges and steps of them"
            )
    if not _is_accepted(expression):
        raise never_runs(expression)
    return fields


def never_runs(expression: str) -> IllegalMessageError:
    """Return the error for an expression without a run."""
    return IllegalMessageError(
        f"{names.DELAY_CRON} is {expression!r}, which never occurs: check day-of-month, month and day-of-week"
    )


def _is_accepted(expression: str) -> bool:
    try:
        CronSim(expression, datetime(2000, 1, 1))
    except (CronSimError, ValueError, AssertionError):
        return False
    return True


def _zone_of(name: str) -> tzinfo:
    if len(name) > _MAX_ZONE_CHARACTERS or _ZONE.match(name) is None or name.startswith(_NOT_IN_DATABASE):
        raise _unknown_zone(name)
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise _unknown_zone(name) from error


def _unknown_zone(name: str) -> IllegalMessageError:
    return IllegalMessageError(
        f"{names.DELAY_ZONE} is {name[:_MAX_ZONE_CHARACTERS]!r}, which is not a known time zone: use a name of the IANA"
        " database, such as Europe/Berlin"
    )


def _offset(time: datetime, zone: tzinfo) -> timedelta:
    return time.astimezone(zone).utcoffset() or timedelta()


def _local(time: datetime, zone: tzinfo) -> datetime:
    return time.astimezone(zone).replace(tzinfo=None, fold=0)


def _is_repeated(wall: datetime, zone: tzinfo) -> bool:
    return wall.replace(tzinfo=zone, fold=0).utcoffset() != wall.replace(tzinfo=zone, fold=1).utcoffset()


def _instant(wall: datetime, zone: tzinfo) -> datetime:
    """Return the first time at which a clock shows `wall`, or that of the change which skips it."""
    time = wall.replace(tzinfo=zone).astimezone(UTC)
    if _local(time, zone) == wall:
        return time
    wall = wall.replace(second=0)
    while _local(time, zone) != wall:
        wall += _MINUTE
        time = wall.replace(tzinfo=zone).astimezone(UTC)
    return time


def _first_change(begin: datetime, end: datetime, zone: tzinfo) -> datetime | None:
    """Return the first time after `begin`, and at or before `end`, at which the offset of a zone changes."""
    if zone is UTC or end <= begin:
        return None
    low, offset = begin, _offset(begin, zone)
    while low < end:
        high = min(low + _BETWEEN_CHANGES, end)
        if _offset(high, zone) != offset:
            while high - low > _SECOND:
                middle = low + (high - low) // 2
                middle -= timedelta(microseconds=middle.microsecond)
                if _offset(middle, zone) == offset:
                    low = max(middle, low)
                else:
                    high = middle
            return high
        low = high
    return None
