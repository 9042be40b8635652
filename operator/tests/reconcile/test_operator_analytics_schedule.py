"""When scheduled runs are due: cron lines, time zones, hours that come twice or never, runs that were missed."""

from datetime import UTC, datetime

import pytest
from delaymq_operator.reconcile.broker.analytics.schedule import ScheduleError, latest_time_ms, next_time_ms

BERLIN, NEW_YORK, UTC_ZONE = "Europe/Berlin", "America/New_York", "Etc/UTC"


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def text(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def following(line: str, zone: str, after: str, count: int) -> list[str]:
    """The next times after one, as texts in UTC."""
    found: list[str] = []
    at_ms = ms(after)
    for _ in range(count):
        at_ms = next_time_ms(line, zone, at_ms)
        found.append(str(text(at_ms)))
    return found


@pytest.mark.parametrize(
    ("line", "after", "expected"),
    [
        ("0 3 * * *", "2026-11-21 02:59", "2026-11-21 03:00"),
        ("0 3 * * *", "2026-11-21 03:00", "2026-11-22 03:00"),
        ("*/15 * * * *", "2026-11-21 10:01", "2026-11-21 10:15"),
        ("@hourly", "2026-11-21 10:01", "2026-11-21 11:00"),
        ("@daily", "2026-11-21 10:01", "2026-11-22 00:00"),
        ("@weekly", "2026-11-21 10:01", "2026-11-22 00:00"),
        ("@monthly", "2026-11-21 10:01", "2026-12-01 00:00"),
        ("30 4 1 * MON", "2026-11-21 10:01", "2026-11-23 04:30"),
        ("0 0 29 2 *", "2026-11-21 10:01", "2028-02-29 00:00"),
        ("59 23 31 12 *", "2026-12-31 23:59", "2027-12-31 23:59"),
    ],
)
def test_a_line_is_due_as_cron_has_it(line: str, after: str, expected: str) -> None:
    assert text(next_time_ms(line, UTC_ZONE, ms(after))) == expected


def test_a_zone_s_own_hours_count_in_summer_and_winter() -> None:
    assert following("0 3 * * *", BERLIN, "2026-10-24 00:00", 3) == [
        "2026-10-24 01:00",
        "2026-10-25 02:00",
        "2026-10-26 02:00",
    ]


def test_an_hour_that_is_left_out_is_made_up_for_right_after_it() -> None:
    # On 2026-03-29 Berlin goes from 02:00 to 03:00, at 01:00 UTC.
    assert following("30 2 * * *", BERLIN, "2026-03-28 00:00", 3) == [
        "2026-03-28 01:30",
        "2026-03-29 01:00",
        "2026-03-30 00:30",
    ]


def test_two_times_in_an_hour_that_is_left_out_are_one() -> None:
    assert following("0,30 2 * * *", BERLIN, "2026-03-29 00:00", 2) == ["2026-03-29 01:00", "2026-03-30 00:00"]


def test_an_hour_that_comes_twice_is_due_once() -> None:
    # On 2026-11-01 New York has 01:00 to 02:00 twice, from 05:00 and from 06:00 UTC.
    assert following("30 1 * * *", NEW_YORK, "2026-11-01 00:00", 2) == ["2026-11-01 05:30", "2026-11-02 06:30"]


@pytest.mark.parametrize("asked_at", ["2026-11-01 05:31", "2026-11-01 06:15", "2026-11-01 06:45"])
def test_asked_within_the_second_of_the_hours_it_is_not_due_again(asked_at: str) -> None:
    assert text(next_time_ms("30 1 * * *", NEW_YORK, ms(asked_at))) == "2026-11-02 06:30"


def test_a_line_for_every_hour_goes_through_both_hours_and_leaves_none_out() -> None:
    assert following("0 * * * *", NEW_YORK, "2026-11-01 04:30", 3) == [
        "2026-11-01 05:00",
        "2026-11-01 06:00",
        "2026-11-01 07:00",
    ]
    assert following("*/30 * * * *", BERLIN, "2026-03-29 00:15", 3) == [
        "2026-03-29 00:30",
        "2026-03-29 01:00",
        "2026-03-29 01:30",
    ]


@pytest.mark.parametrize(
    "line", ["0 3 * * *", "*/7 * * * *", "30 2 * * *", "0 0 29 2 *", "15 1,13 * * MON-FRI", "@weekly"]
)
@pytest.mark.parametrize("zone", [UTC_ZONE, BERLIN, NEW_YORK, "Asia/Kolkata", "Australia/Lord_Howe"])
@pytest.mark.parametrize("start", ["2026-03-28 00:00", "2026-10-24 13:10", "2026-11-01 05:10", "2027-12-31 23:59"])
def test_times_rise_whatever_clocks_do(line: str, zone: str, start: str) -> None:
    found = following(line, zone, start, 20)
    assert found == sorted(set(found))
    assert found[0] > start


@pytest.mark.parametrize(
    ("line", "first", "now", "expected"),
    [
        ("0 3 * * *", "2026-11-18 03:00", "2026-11-21 10:00", "2026-11-21 03:00"),
        ("0 3 * * *", "2026-11-21 03:00", "2026-11-21 03:00", "2026-11-21 03:00"),
        ("0 3 * * *", "2026-11-21 03:01", "2026-11-21 10:00", None),
        ("* * * * *", "2016-11-21 00:00", "2026-11-21 10:00", "2026-11-21 10:00"),
        ("0 0 1 * *", "2026-01-01 00:00", "2026-11-21 10:00", "2026-11-01 00:00"),
        ("0 0 29 2 *", "2020-01-01 00:00", "2026-11-21 10:00", "2024-02-29 00:00"),
        ("0 3 * * *", "2026-11-22 03:00", "2026-11-21 10:00", None),
    ],
)
def test_of_the_runs_that_were_missed_the_latest_is_found(
    line: str, first: str, now: str, expected: str | None
) -> None:
    assert text(latest_time_ms(line, UTC_ZONE, ms(first), ms(now))) == expected


def test_the_latest_of_an_hour_that_comes_twice_is_its_first() -> None:
    latest = latest_time_ms("30 1 * * *", NEW_YORK, ms("2026-10-30 00:00"), ms("2026-11-01 06:45"))
    assert text(latest) == "2026-11-01 05:30"


NO_LINES = [
    "",
    "0 3 * *",
    "0 3 * * * *",
    "60 3 * * *",
    "0 25 * * *",
    "0 3 32 * *",
    "x 3 * * *",
    "@yearly",
    "0 3 31 2 *",
    "0 3 * * 8",
    "*/0 * * * *",
    "5-1 * * * *",
    "0 3 * * *" + " " * 300,
    "0 0 30 2 MON#6",
    "0 3 * * \x00",
    "\u0663 3 * * *",
]


@pytest.mark.parametrize("line", NO_LINES)
def test_a_line_that_cannot_be_meant_is_refused_with_a_sentence(line: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        next_time_ms(line, UTC_ZONE, ms("2026-11-21 10:00"))
    assert "spec.analytics.schedule" in str(caught.value)
    assert ": use " in str(caught.value)


@pytest.mark.parametrize(
    "zone", ["Europe/Berlyn", "", "../../etc/passwd", "/etc/passwd", "Europe", "CEST+x", "a\x00b", "é" * 300]
)
def test_a_zone_that_there_is_not_is_refused_with_a_sentence(zone: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        next_time_ms("0 3 * * *", zone, ms("2026-11-21 10:00"))
    assert "spec.analytics.timeZone" in str(caught.value)
    assert "Europe/Berlin" in str(caught.value)
