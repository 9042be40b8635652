"""Times of a cron expression in a time zone.

The library cronsim parses expressions. It also knows time zones, but loses runs where clocks change by half an hour, so
the rule of Debian's cron for changes of the clock is applied here to the matching wall-clock times (`walls`):

- Expressions with fixed seconds, minutes and hours, that is, none of these fields begins with `*`, run once for each
  matching wall-clock time. A time that does not exist runs at the change, and of one that occurs twice, the first
  occurrence counts.
- All other expressions run whenever the clock shows a matching time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from delaymq.broker.delivery.repeating.walls import Walls
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
_NEAR: Final = timedelta(days=2)
"""More than the largest change of the clock, and than the largest difference between two offsets of a zone."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Cron:
    """A cron expression in a time zone. Immutable."""

    def __init__(self, expression: str, zone: str = "UTC") -> None:
        """Parse an expression of 5 fields, or 6 with seconds first. IllegalMessageError names the wrong field."""
        self._zone = _zone_of(zone)
        timed = _checked(expression)[:-3]
        self._is_fixed = not any(field.startswith("*") for field in timed)
        self._walls = Walls(expression)

    def next_after(self, time_ms: int) -> int | None:
        """Return the first run after a time in ms since the epoch; None if there is none within some 50 years."""
        try:
            found = self._fixed(_time(time_ms)) if self._is_fixed else self._any(_time(time_ms))
        except (OverflowError, ValueError):
            return None  # beyond the year 9999
        return None if found is None else _ms(found)

    def oldest_of(self, first_ms: int, until_ms: int, count: int) -> int:
        """Return the first of the last `count` runs up to `until_ms`, or the run `first_ms` if there are fewer.

        Fixed times that a change of the clock skips count, although several of them may run once at the change.
        """
        try:
            begin, end = _time(first_ms), _time(until_ms)
            found = self._fixed_back(begin, end, count) if self._is_fixed else self._any_back(begin, end, count)
        except (OverflowError, ValueError):
            return first_ms
        return first_ms if found is None else max(_ms(found), first_ms)

    def count(self, after_ms: int, until_ms: int, most: int) -> int:
        """Return the number of runs after a time and up to another one, at most `most`.

        Repeated and missing hours are not counted exactly.
        """
        try:
            after, until = (_local(_time(each), self._zone) for each in (after_ms, until_ms))
            return self._walls.back(until, most, after + _SECOND)[1]
        except (OverflowError, ValueError):
            return 0

    def _fixed(self, time: datetime) -> datetime | None:
        zone = self._zone
        match = self._walls.after(self._shown(time))
        while match is not None:
            run = _instant(match, zone)
            if run > time:
                return run
            match = self._walls.after(match)
        return None

    def _fixed_back(self, begin: datetime, end: datetime, count: int) -> datetime | None:
        match, found = self._walls.back(self._shown(end), count, _local(begin, self._zone))
        return _instant(match, self._zone) if match is not None and found == count else None

    def _shown(self, time: datetime) -> datetime:
        """Return the latest wall-clock time that a clock has shown up to `time`."""
        zone = self._zone
        wall = _local(time, zone)
        if time.astimezone(zone).fold:
            # What the clock shows for the second time is past.
            wall = wall.replace(second=0) + _MINUTE
            while _is_repeated(wall, zone):
                wall += _MINUTE
            wall -= _SECOND
        return wall

    def _any(self, time: datetime) -> datetime | None:
        zone = self._zone
        offset = _offset(time, zone)
        match = self._walls.after(_shifted(time, offset))
        while match is not None:
            run = match.replace(tzinfo=UTC) - offset
            change = _first_change(time, min(run, time + _NEAR), zone)
            if change is not None:
                time, offset = change, _offset(change, zone)
                match = self._walls.after(_shifted(change, offset) - _SECOND)
            elif run - time > _NEAR:
                # A change that is neither near `time` nor near the match neither repeats nor skips a match.
                time = run - _NEAR
                offset = _offset(time, zone)
            else:
                return run
        return None

    def _any_back(self, begin: datetime, end: datetime, count: int) -> datetime | None:
        zone = self._zone
        while end >= begin:
            offset = _offset(end, zone)
            wall = _shifted(end, offset)
            match, found = self._walls.back(wall, count, _shifted(begin, offset))
            run = match.replace(tzinfo=UTC) - offset if match is not None and found == count else None
            change = _last_change(begin if run is None else run, end, zone)
            if change is None:
                return run
            # The offset holds since the change.
            count -= self._walls.back(wall, count, _shifted(change, offset))[1]
            end = change - _SECOND
        return None


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


def _time(time_ms: int) -> datetime:
    """Return a time without its fraction of a second. OverflowError beyond the year 9999."""
    return _EPOCH + timedelta(seconds=time_ms // 1_000)


def _ms(time: datetime) -> int:
    return (time - _EPOCH) // _SECOND * 1_000


def _shifted(time: datetime, offset: timedelta) -> datetime:
    """Return what a clock with an offset shows."""
    return (time + offset).replace(tzinfo=None)


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
    low = begin
    while zone is not UTC and low < end:
        high = min(low + _BETWEEN_CHANGES, end)
        if (change := _change(low, high, zone)) is not None:
            return change
        low = high
    return None


def _last_change(begin: datetime, end: datetime, zone: tzinfo) -> datetime | None:
    """Return the last time after `begin`, and at or before `end`, at which the offset of a zone changes."""
    high = end
    while zone is not UTC and begin < high:
        low = max(high - _BETWEEN_CHANGES, begin)
        if (change := _change(low, high, zone)) is not None:
            return change
        high = low
    return None


def _change(low: datetime, high: datetime, zone: tzinfo) -> datetime | None:
    """Return the time after `low`, and at or before `high`, at which the offset changes; it changes at most once."""
    offset = _offset(low, zone)
    if _offset(high, zone) == offset:
        return None
    while high - low > _SECOND:
        middle = low + (high - low) // 2
        middle -= timedelta(microseconds=middle.microsecond)
        if _offset(middle, zone) == offset:
            low = max(middle, low)
        else:
            high = middle
    return high
