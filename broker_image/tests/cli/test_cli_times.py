"""Parsing and formatting of times."""

from datetime import UTC, datetime

import pytest
from delaymq.cli.errors import CommandError
from delaymq.cli.terminal.times import format_clock, format_moment, format_time, parse_time

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
    "text", ["", "yesterday", "10 ago", "10x ago", "ago", "-5", "99999999999999999999", "9999999d ago", "٣"]
)
def test_invalid_time_is_reported_with_examples(text: str) -> None:
    with pytest.raises(CommandError, match="use 2026-01-31T12:00") as caught:
        parse_time(text, NOW_MS)
    assert caught.value.exit_code == 2


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
