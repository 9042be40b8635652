"""The times of cron expressions by the rule in the documentation: every minute of a year, in tables, without a search.

Written from the rule and not from the code: a table maps each minute that a clock of the zone shows to the minutes of
UTC at which it does.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "America/Los_Angeles", "Australia/Lord_Howe",
    "Australia/Sydney", "Asia/Kolkata", "America/Havana", "Africa/Cairo", "Asia/Beirut",
    "America/Santiago", "Atlantic/Azores", "Pacific/Chatham", "America/St_Johns", "Africa/Casablanca",
    "Europe/Dublin", "Antarctica/Troll", "America/Nuuk", "Asia/Gaza", "Pacific/Easter",
)  # fmt: skip
"""Changes of an hour, half an hour and two hours, at midnight, 2:45 and on Saturdays, and zones without any."""
_EPOCH = datetime(1970, 1, 1)
_MINUTES = 60
_QUARTER = 15
"""All changes are at whole quarters of an hour in UTC."""
_DAY = 24 * _MINUTES


class Clock:
    """What the clocks of a zone show in one year."""

    def __init__(self, zone: str, year: int) -> None:
        self.zone = zone
        self.begin = _minutes(datetime(year, 1, 1))
        self.end = _minutes(datetime(year + 1, 1, 1))
        self.shown: dict[int, list[int]] = {}
        """Minutes of UTC, by the minute that the clock shows."""
        self.gaps: dict[int, int] = {}
        """Minute of the change, by each minute that the clock skips."""
        info, before = ZoneInfo(zone), None
        for minute in range(self.begin - 2 * _DAY, self.end + 2 * _DAY, _QUARTER):
            offset = info.utcoffset(datetime.fromtimestamp(minute * 60, UTC).astimezone(info))
            assert offset is not None
            shift = offset // timedelta(minutes=1)
            if before is not None and shift > before:
                for skipped in range(minute + before, minute + shift):
                    self.gaps[skipped] = minute
            for each in range(minute, minute + _QUARTER):
                self.shown.setdefault(each + shift, []).append(each)
            before = shift

    def runs(self, expression: str) -> list[int]:
        """Seconds since the epoch at which an expression of numbers, lists, ranges, steps and stars runs."""
        fields = expression.split()
        seconds = sorted(_numbers(fields.pop(0), 0, 59)) if len(fields) == 6 else [0]
        is_fixed = not any(field.startswith("*") for field in expression.split()[:-3])
        found = set()
        for wall in _walls(fields, self.begin - _DAY, self.end + _DAY):
            minutes = self.shown.get(wall, [])
            if is_fixed:
                if wall in self.gaps:
                    found.add(self.gaps[wall] * 60)
                minutes = minutes[:1]
            found.update(minute * 60 + second for minute in minutes for second in seconds)
        return sorted(each for each in found if self.begin * 60 <= each < self.end * 60)


def _minutes(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(minutes=1)


def _walls(fields: list[str], begin: int, end: int) -> list[int]:
    minutes, hours = _numbers(fields[0], 0, 59), _numbers(fields[1], 0, 23)
    days, months, weekdays = _numbers(fields[2], 1, 31), _numbers(fields[3], 1, 12), _numbers(fields[4], 0, 7)
    weekdays = {each % 7 for each in weekdays}
    both = fields[2].startswith("*") or fields[4].startswith("*")
    found = []
    for midnight in range(begin // _DAY * _DAY, end, _DAY):
        date = _EPOCH + timedelta(minutes=midnight)
        in_days, in_weekdays = date.day in days, date.isoweekday() % 7 in weekdays
        if date.month in months and (in_days and in_weekdays if both else in_days or in_weekdays):
            found += [midnight + hour * _MINUTES + minute for hour in hours for minute in minutes]
    return found


def _numbers(field: str, least: int, most: int) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        values, _, step = term.partition("/")
        if values == "*":
            first, last = least, most
        elif "-" in values:
            first, last = map(int, values.split("-"))
        else:
            first = int(values)
            last = most if step else first
        found.update(range(first, last + 1, int(step or 1)))
    return found


def drawn(random: Random, *, with_seconds: bool) -> str:
    """An expression that often runs while clocks change, and at most some 20 times a day."""
    seconds = [random.choice(["0", "30", "0,15", "59"])] if with_seconds else []
    minute = random.choice(["0", "30", "45", "59", "*/30", "*/20", "0,30", "5-7", "0-59/29", str(random.randrange(60))])
    hour = random.choice(["0", "1", "2", "3", "2,3", "1-3", "23", "0-3", "*/4", "5/9", str(random.randrange(24))])
    if minute in ("0", "30", "45", "59") and random.random() < 0.3:
        hour = "*"
    day = random.choice(["*", "*", "*", "*/2", "1-7", "29-31", str(random.randrange(1, 29))])
    month = random.choice(["*", "*", "*", "3-4,9-11", "2-4", str(random.randrange(1, 13))])
    weekday = random.choice(["*", "*", "*", "0", "5-7", "1-5", str(random.randrange(7))])
    return " ".join([*seconds, minute, hour, day, month, weekday])
