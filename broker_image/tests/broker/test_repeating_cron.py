"""Times of cron expressions: an independent implementation of the rule, wrong expressions, hostile ones."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from types import FrameType
from zoneinfo import ZoneInfo

import pytest
from delaymq.broker.delivery.repeating.cron import MAX_CHARACTERS, Cron
from delaymq.broker.delivery.repeating.schedules import ByCron
from delaymq.message.errors import IllegalMessageError
from delaymq_testing.broker.crons import ZONES, Clock, drawn
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

YEAR = 2026
EXPRESSIONS = max(FUZZ_INPUTS // 1_250, 1)
"""By default, 16 expressions for each of the 20 zones."""
YEAR_MS = 366 * 86_400_000
MAX_CALLS = 20_000
"""Calls of functions, which take some milliseconds. A visit to every minute of three years takes millions."""


def ms(zone: str, *of: int, fold: int = 0) -> int:
    return int(datetime(*of, fold=fold, tzinfo=ZoneInfo(zone)).timestamp() * 1_000)  # type: ignore[arg-type]


def following(cron: Cron, time_ms: int, count: int) -> list[int]:
    times: list[int] = []
    while len(times) < count:
        found = cron.next_after(times[-1] if times else time_ms)
        assert found is not None
        times.append(found)
    return times


@pytest.mark.parametrize("zone", ZONES)
def test_times_of_a_year_are_those_of_the_rule(zone: str) -> None:
    random = Random(f"{SEED} {zone}")
    clock = Clock(zone, YEAR)
    for number in range(EXPRESSIONS):
        expression = drawn(random, with_seconds=number % 4 == 3)
        expected = [second * 1_000 for second in clock.runs(expression)]
        cron, found, time_ms = Cron(expression, zone), [], clock.begin * 60_000 - 1
        while (following_ms := cron.next_after(time_ms)) is not None and following_ms < clock.end * 60_000:
            found.append(following_ms)
            time_ms = following_ms
        assert found == expected, expression
        # The next time does not depend on the one before.
        for change in [*clock.gaps.values(), random.randrange(clock.begin, clock.end)][:: len(clock.gaps) or 1]:
            begin_ms = change * 60_000 + random.randrange(-10_000_000, 10_000_000)
            if expected and clock.begin * 60_000 <= begin_ms < expected[-1]:
                assert cron.next_after(begin_ms) == expected[bisect_right(expected, begin_ms)], expression
                last = bisect_right(expected, begin_ms) - 1
                if last > 2:
                    assert cron.oldest_of(expected[last - 2], begin_ms, 1) == expected[last], expression


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "Antarctica/Troll"])
@pytest.mark.parametrize("expression", ["* * * * *", "*/7 * * * *", "0-59 0-3 * * *", "*/10 0 0-3 * * *"])
def test_frequent_times_around_changes_are_those_of_the_rule(zone: str, expression: str) -> None:
    clock, cron = Clock(zone, YEAR), Cron(expression, zone)
    expected = [second * 1_000 for second in clock.runs(expression)]
    changes = (
        sorted(set(clock.gaps.values()))
        + sorted(minutes[1] for minutes in clock.shown.values() if len(minutes) > 1 and minutes[1] < clock.end)[:1]
    )
    assert len(changes) == 2
    for change in changes:
        begin_ms, end_ms = change * 60_000 - 14_400_000, change * 60_000 + 14_400_000
        found, time_ms = [], begin_ms
        while (following_ms := cron.next_after(time_ms)) is not None and following_ms <= end_ms:
            found.append(following_ms)
            time_ms = following_ms
        assert found == [each for each in expected if begin_ms < each <= end_ms]


def test_fixed_time_that_does_not_exist_runs_at_the_change() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")
    times = following(cron, ms("Europe/Berlin", 2026, 3, 28, 12), 2)
    assert times == [ms("UTC", 2026, 3, 29, 1), ms("UTC", 2026, 3, 30, 0, 30)]


def test_fixed_time_that_occurs_twice_runs_once() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")
    times = following(cron, ms("Europe/Berlin", 2026, 10, 24, 12), 2)
    assert times == [ms("UTC", 2026, 10, 25, 0, 30), ms("UTC", 2026, 10, 26, 1, 30)]
    assert cron.next_after(ms("Europe/Berlin", 2026, 10, 25, 2, 10, fold=1)) == times[1]


def test_last_runs_before_a_time_are_found_for_a_year_of_minutes() -> None:
    rhythm, end_ms = ByCron("* * * * *", "Europe/Berlin"), ms("Europe/Berlin", 2026, 10, 25, 4)
    oldest_ms = rhythm.oldest_of(end_ms - YEAR_MS, end_ms, 1_000)
    assert oldest_ms == end_ms - 999 * 60_000
    sparse = ByCron("0 0 1 * *", "UTC")
    assert sparse.oldest_of(end_ms - YEAR_MS, end_ms, 1_000) == end_ms - YEAR_MS


def test_last_runs_before_a_time_are_found_in_zones_with_changes() -> None:
    clock = Clock("Europe/Berlin", YEAR)
    for expression in ("0 * * * *", "*/20 1-3 * * *", "10 2 * * *", "*/30 0,15 2 * * *"):
        expected = [second * 1_000 for second in clock.runs(expression)]
        for day in range(0, 360, 17):
            end_ms = clock.begin * 60_000 + (day + 1) * 86_400_000
            runs = [each for each in expected if each <= end_ms]
            for count in (1, 7, 50):
                if len(runs) > count:
                    found = ByCron(expression, "Europe/Berlin").oldest_of(runs[0], end_ms, count)
                    assert found in runs
                    assert found == runs[-count], "more or less than the last ones"


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("60 * * * *", "field 1 (minute) of DELAY_CRON is '60': use 0 to 59, or lists, ranges and steps of them"),
        ("0 9 * 13 1", "field 4 (month) of DELAY_CRON is '13': use 1 to 12 or JAN to DEC"),
        ("0 0 9 * * MOON", "field 6 (day-of-week) of DELAY_CRON is 'MOON': use 0 to 7 or SUN to SAT"),
        ("61 0 9 * * 1", "field 1 (second) of DELAY_CRON is '61': use 0 to 59"),
        ("0 24 * * *", "field 2 (hour) of DELAY_CRON is '24': use 0 to 23"),
        ("*/0 * * * *", "field 1 (minute) of DELAY_CRON is '*/0'"),
        ("1-,2 * * * *", "field 1 (minute) of DELAY_CRON is '1-,2'"),
        ("5-1 * * * *", "field 1 (minute) of DELAY_CRON is '5-1'"),
        ("0 0 30 2 *", "DELAY_CRON is '0 0 30 2 *', which never occurs: check day-of-month"),
        ("* * * *", "DELAY_CRON is '* * * *', which has 4 fields: use 5 fields"),
        ("@daily", "use letters, digits and the characters"),
        ("٣ * * * *", "use letters, digits and the characters"),
        ("0 0 * * 1\n2", "use letters, digits and the characters"),
        ("1," * 64 + "1 * * * *", f"DELAY_CRON has 137 characters: use at most {MAX_CHARACTERS} characters"),
    ],
)
def test_wrong_expression_is_rejected_with_its_field(expression: str, problem: str) -> None:
    with pytest.raises(IllegalMessageError) as error:
        Cron(expression)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    "zone",
    ["Europe/Bonn", "", "..", "../etc/passwd", "/etc/passwd", "Europe", "posix/Europe/Berlin", "right/UTC", "localtime",
     "x" * 100, "Europe/Berlin\0", "Ä", "tzdata.zi", "zone.tab"],
)  # fmt: skip
def test_unknown_zone_is_rejected(zone: str) -> None:
    with pytest.raises(IllegalMessageError, match="not a known time zone: use a name of the IANA database"):
        Cron("0 9 * * *", zone)


def test_names_and_special_days_are_understood() -> None:
    friday = Cron("0 9 L * *", "UTC")
    assert friday.next_after(ms("UTC", 2026, 2, 1)) == ms("UTC", 2026, 2, 28, 9)
    assert Cron("0 9 * feb mon#1").next_after(ms("UTC", 2026, 1, 1)) == ms("UTC", 2026, 2, 2, 9)
    assert Cron("15,30 0 9 LW * *").next_after(ms("UTC", 2026, 1, 1)) == ms("UTC", 2026, 1, 30, 9) + 15_000


def test_time_that_a_distant_change_skips_or_repeats_is_found() -> None:
    skipped = Cron("*/20 2 29 3 *", "Europe/Berlin")
    assert skipped.next_after(ms("UTC", 2025, 4, 1)) == ms("Europe/Berlin", 2027, 3, 29, 2)
    repeated = Cron("*/30 2 25 10 *", "Europe/Berlin")
    found = [ms("UTC", 2026, 10, 25, 0) + 1_800_000 * number for number in range(4)]
    assert following(repeated, ms("UTC", 2025, 11, 1), 5) == [*found, ms("Europe/Berlin", 2027, 10, 25, 2)]
    assert repeated.oldest_of(found[0] - YEAR_MS, found[3], 3) == found[1]


def calls_in(work: Callable[[], object]) -> int:
    """Return the number of calls of functions, Python's and C's: a measure that no other process changes."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_hostile_expressions_take_few_steps() -> None:
    terms = ",".join(["0-59/1"] * 15)
    hostile = ["* * */20 * 1L", "0 12 */29 2 1L", "0 0 */31 2 0#4", "59 59 23 29 2 MON#5", f"{terms} * * * *",
               "* * */28 2 4#5", "* * * */28 2 4#5", "* * */31 6 3"]  # fmt: skip
    for expression in hostile:
        for zone in ("UTC", "Europe/Berlin", "America/Nuuk"):
            calls = calls_in(lambda: Cron(expression, zone).next_after(ms("UTC", 2026, 1, 1)))  # noqa: B023
            assert calls < MAX_CALLS, expression


def test_limit_of_missed_runs_is_found_without_a_visit_to_each() -> None:
    end_ms = ms("UTC", 2026, 11, 1)
    for expression in ("* * * * * *", "* * * * *", "0,1,2,3 * * * * *", "0 0 * * *", "30 2 1 * *"):
        rhythm = ByCron(expression, "Europe/Berlin")
        calls = calls_in(lambda: rhythm.oldest_of(end_ms - 3 * YEAR_MS, end_ms, 1_000))  # noqa: B023
        assert calls < MAX_CALLS, expression


def test_end_of_time_is_no_error() -> None:
    last_ms = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp() * 1_000)
    assert Cron("0 0 1 1 *", "Europe/Berlin").next_after(last_ms) is None
    assert Cron("* * * * *").next_after(1 << 62) is None


def test_times_increase_whatever_the_expression() -> None:
    random = Random(SEED)
    for _ in range(50):
        cron = Cron(drawn(random, with_seconds=False), random.choice(ZONES))
        times = following(cron, ms("UTC", 2026, 3, 1), 20)
        assert all(one < other for one, other in pairwise(times))
