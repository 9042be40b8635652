"""Wall-clock times that match a cron expression, whatever the time zone.

The library cronsim parses the expression and decides whether a date matches. It searches date by date, however, and
parses the expression for each search. Here, the matching days of each kind of month are remembered, so that the next
match within 50 years, or the thousandth match before a time, is found in less than a millisecond.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator
from datetime import MAXYEAR, MINYEAR, date, datetime, timedelta
from typing import Final

from cronsim import CronSim

_YEARS: Final = 50
"""Years in which a match is searched for."""
_SECOND: Final = timedelta(seconds=1)
_ANY: Final = datetime(2000, 1, 1)


class Walls:
    """The matching wall-clock times of an expression."""

    def __init__(self, expression: str) -> None:
        """Parse an expression. CronSimError, ValueError or AssertionError if it is invalid."""
        parsed = CronSim(expression, _ANY)
        self._matches = parsed.match_day
        self._months = parsed.months
        self._hours, self._minutes, self._seconds = map(sorted, (parsed.hours, parsed.minutes, parsed.seconds))
        self._per_hour = len(self._minutes) * len(self._seconds)
        self._per_day = len(self._hours) * self._per_hour
        self._days: dict[tuple[int, int], list[int]] = {}
        """By weekday of the first day, and number of days: the matching days of a month."""

    def after(self, wall: datetime) -> datetime | None:
        """Return the first match after a time; None if there is none within 50 years."""
        least = wall.replace(microsecond=0) + _SECOND
        rank = self._rank(least)
        begin = least.date()
        for day in self._dates(begin):
            if day != begin:
                return self._time(day, 0)
            if rank < self._per_day:
                return self._time(day, rank)
        return None

    def back(self, wall: datetime, count: int, least: datetime) -> tuple[datetime | None, int]:
        """Return the first of the last `count` matches from `least` up to `wall`, and their number.

        If there are fewer, the first of all matches is returned; None without any. `least` and `wall` have no
        fractions of a second.
        """
        first, found, begin, end = None, 0, least.date(), wall.date()
        for day in self._dates_back(end, begin):
            low = self._rank(least) if day == begin else 0
            high = self._rank(wall, including=True) if day == end else self._per_day
            if high > low:
                taken = min(high - low, count - found)
                first, found = self._time(day, high - taken), found + taken
                if found == count:
                    break
        return first, found

    def _rank(self, wall: datetime, *, including: bool = False) -> int:
        """Return the number of matching times of day before, or up to and including, that of `wall`."""
        hours = bisect_left(self._hours, wall.hour)
        if hours == len(self._hours) or self._hours[hours] != wall.hour:
            return hours * self._per_hour
        minutes = bisect_left(self._minutes, wall.minute)
        rank = hours * self._per_hour + minutes * len(self._seconds)
        if minutes == len(self._minutes) or self._minutes[minutes] != wall.minute:
            return rank
        return rank + (bisect_right if including else bisect_left)(self._seconds, wall.second)

    def _time(self, day: date, rank: int) -> datetime:
        """Return a time of a day by its rank."""
        hours, rank = divmod(rank, self._per_hour)
        minutes, seconds = divmod(rank, len(self._seconds))
        return datetime(
            day.year, day.month, day.day, self._hours[hours], self._minutes[minutes], self._seconds[seconds]
        )

    def _dates(self, begin: date) -> Iterator[date]:
        """Yield the matching dates of 50 years from one on."""
        for year in range(begin.year, min(begin.year + _YEARS, MAXYEAR) + 1):
            for month in range(begin.month if year == begin.year else 1, 13):
                is_first = (year, month) == (begin.year, begin.month)
                for day in self._days_of(year, month):
                    if not is_first or day >= begin.day:
                        yield date(year, month, day)

    def _dates_back(self, end: date, begin: date) -> Iterator[date]:
        """Yield the matching dates between two, the latest first."""
        for year in range(end.year, max(begin.year, MINYEAR) - 1, -1):
            for month in range(end.month if year == end.year else 12, 0, -1):
                for day in reversed(self._days_of(year, month)):
                    each = date(year, month, day)
                    if each < begin:
                        return
                    if each <= end:
                        yield each

    def _days_of(self, year: int, month: int) -> list[int]:
        if month not in self._months:
            return []
        kind = monthrange(year, month)
        days = self._days.get(kind)
        if days is None:
            # Whether a date matches depends on its month only by weekdays and length.
            days = [day for day in range(1, kind[1] + 1) if self._matches(date(year, month, day))]
            self._days[kind] = days
        return days
