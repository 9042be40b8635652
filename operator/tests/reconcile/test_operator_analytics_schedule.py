"""Due times of scheduled runs: cron lines, time zones, clock changes, missed runs."""

from datetime import UTC, datetime

import pytest
from delaymq_operator.reconcile.broker.analytics.schedule import ScheduleError, latest_time_ms, next_time_ms

BERLIN, NEW_YORK, UTC_ZONE = "Europe/Berlin", "America/New_York", "Etc/UTC"


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def text(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def following(line: str, zone: str, after: str, count: int) -> list[str]:
    """Return the next `count` due times after a time, as texts in UTC."""
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
def test_due_time_follows_cron_line(line: str, after: str, expected: str) -> None:
    assert text(next_time_ms(line, UTC_ZONE, ms(after))) == expected


def test_schedule_follows_daylight_saving_time_of_zone() -> None:
    assert following("0 3 * * *", BERLIN, "2026-10-24 00:00", 3) == [
        "2026-10-24 01:00",
        "2026-10-25 02:00",
        "2026-10-26 02:00",
    ]


def test_time_in_skipped_hour_is_due_right_after_it() -> None:
    # On 2026-03-29, clocks in Berlin skip from 02:00 to 03:00, at 01:00 UTC.
    assert following("30 2 * * *", BERLIN, "2026-03-28 00:00", 3) == [
        "2026-03-28 01:30",
        "2026-03-29 01:00",
        "2026-03-30 00:30",
    ]


def test_two_times_in_skipped_hour_are_due_once() -> None:
    assert following("0,30 2 * * *", BERLIN, "2026-03-29 00:00", 2) == ["2026-03-29 01:00", "2026-03-30 00:00"]


def test_time_in_repeated_hour_is_due_once() -> None:
    # On 2026-11-01, the hour from 01:00 to 02:00 in New York occurs twice, from 05:00 and from 06:00 UTC.
    assert following("30 1 * * *", NEW_YORK, "2026-11-01 00:00", 2) == ["2026-11-01 05:30", "2026-11-02 06:30"]


@pytest.mark.parametrize("asked_at", ["2026-11-01 05:31", "2026-11-01 06:15", "2026-11-01 06:45"])
def test_time_is_not_due_again_in_second_pass_of_repeated_hour(asked_at: str) -> None:
    assert text(next_time_ms("30 1 * * *", NEW_YORK, ms(asked_at))) == "2026-11-02 06:30"


def test_hourly_line_is_due_in_both_passes_of_repeated_hour() -> None:
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
def test_due_times_increase_across_clock_changes(line: str, zone: str, start: str) -> None:
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
def test_latest_missed_time_is_found(line: str, first: str, now: str, expected: str | None) -> None:
    assert text(latest_time_ms(line, UTC_ZONE, ms(first), ms(now))) == expected


def test_latest_time_in_repeated_hour_is_in_its_first_pass() -> None:
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
def test_invalid_cron_line_is_rejected_with_remedy(line: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        next_time_ms(line, UTC_ZONE, ms("2026-11-21 10:00"))
    assert "spec.analytics.schedule" in str(caught.value)
    assert ": use " in str(caught.value)


@pytest.mark.parametrize(
    "zone", ["Europe/Berlyn", "", "../../etc/passwd", "/etc/passwd", "Europe", "CEST+x", "a\x00b", "é" * 300]
)
def test_unknown_time_zone_is_rejected_with_example(zone: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        next_time_ms("0 3 * * *", zone, ms("2026-11-21 10:00"))
    assert "spec.analytics.timeZone" in str(caught.value)
    assert "Europe/Berlin" in str(caught.value)
