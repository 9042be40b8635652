"""Parsing and formatting of times."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from delaymq.cli.errors import CommandError
from delaymq.cli.terminal.times import format_clock, format_moment, format_time, parse_due_time, parse_time

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", NOW_MS),
        ("0", 0),
        ("1767225600123", 1_767_225_600_123),
        ("10m ago", NOW_MS - 600_000),
        ("1d 2h 3s ago", NOW_MS - 86_400_000 - 7_200_000 - 3_000),
        ("250ms ago", NOW_MS - 250),
        (" 2 h AGO ", NOW_MS - 7_200_000),
        ("in 1h 30m", NOW_MS + 5_400_000),
        (" In 2 d ", NOW_MS + 172_800_000),
        ("2026-01-01T00:00:00Z", NOW_MS),
        ("2026-01-01T01:00:00.5+01:00", NOW_MS + 500),
    ],
)
def test_times_are_parsed(text: str, ms: int) -> None:
    assert parse_time(text, NOW_MS) == ms


def test_time_without_an_offset_is_local() -> None:
    local = datetime(2026, 7, 1, 12, 30)  # the local zone's rule of that day
    assert parse_time("2026-07-01T12:30", NOW_MS) == round(local.timestamp() * 1000)
    assert parse_time("2026-07-01 12:30", NOW_MS) == round(local.timestamp() * 1000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "10 ago",
        "10x ago",
        "ago",
        "-5",
        "in",
        "in 5",
        "in 5x",
        "in 9999999d",
        "in 1h ago",
        "99999999999999999999",
        "9999999d ago",
        "٣",
    ],
)
def test_invalid_time_is_reported_with_examples(text: str) -> None:
    with pytest.raises(CommandError, match="use 2026-01-31T12:00") as caught:
        parse_time(text, NOW_MS)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2027-01-01T09:00+01:00", datetime(2027, 1, 1, 9, tzinfo=timezone(timedelta(hours=1)))),
        ("2027-01-01T09:00Z", datetime(2027, 1, 1, 9, tzinfo=UTC)),
        (" 2027-01-01 09:00:00.250-05:30 ", datetime(2027, 1, 1, 14, 30, 0, 250_000, UTC)),
        ("1970-01-01T00:00Z", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_due_times_are_parsed(text: str, at: datetime) -> None:
    assert parse_due_time(text) == at


def test_due_time_without_an_offset_is_rejected_with_both_readings() -> None:
    with pytest.raises(CommandError) as caught:
        parse_due_time("2027-07-01T09:00")
    assert caught.value.exit_code == 2
    told = re.fullmatch(
        r"'2027-07-01T09:00' has no offset from UTC: use (\S+) for local time, or (\S+)", str(caught.value)
    )
    assert told is not None
    assert parse_due_time(told[1]) == datetime(2027, 7, 1, 9).astimezone()
    assert parse_due_time(told[2]) == datetime(2027, 7, 1, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "now",
        "10m ago",
        "1798790400000",
        "2027-13-01T00:00Z",
        "0001-01-01T00:00",
        "2027-01-01T09:00+25:00",
    ],
)
def test_invalid_due_time_is_reported_with_examples(text: str) -> None:
    with pytest.raises(CommandError, match=r"is not a due time: use 2027-01-31T12:00\+01:00") as caught:
        parse_due_time(text)
    assert caught.value.exit_code == 2


def test_due_time_before_1970_is_rejected() -> None:
    with pytest.raises(CommandError, match="is before 1970: use a later due time"):
        parse_due_time("1970-01-01T00:59+01:00")


def test_times_are_shown_with_their_offset_and_parsed_back() -> None:
    shown = format_time(NOW_MS + 250)
    assert datetime.fromisoformat(shown) == datetime(2026, 1, 1, 0, 0, 0, 250_000, UTC)
    assert parse_time(shown) == NOW_MS + 250
    assert (format_time(None), format_time(1 << 60)) == ("", f"{1 << 60} ms")


def test_times_of_other_days_are_shown_with_a_date() -> None:
    assert len(format_clock(NOW_MS + 1_000, NOW_MS)) == len("12:00:00")
    assert format_clock(NOW_MS + 86_400_000, NOW_MS).startswith("2026-01-0")
    assert len(format_moment(NOW_MS + 1_000, NOW_MS)) == len("12:00:00.000")
    assert format_moment(NOW_MS + 86_400_250, NOW_MS).startswith("2026-01-0")
    assert format_moment(NOW_MS + 86_400_250, NOW_MS).endswith("00.250")
    assert (format_clock(None, NOW_MS), format_clock(1 << 60, NOW_MS)) == ("", f"{1 << 60} ms")
