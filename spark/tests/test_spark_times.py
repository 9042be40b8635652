"""Times in options and in arguments, parsed alike and without loading Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest
from delaymq_spark.command.arguments import UsageError, parse
from delaymq_spark.source.options import OptionError, parse_options
from delaymq_spark.source.times import parse_time_ms

pytestmark = pytest.mark.core

READABLE = [
    ("0", 0),
    ("1769846400123", 1_769_846_400_123),
    ("999999999999999", 999_999_999_999_999),
    ("2026-01-31", 1_769_817_600_000),
    ("2026-01-31T08:00:00", 1_769_846_400_000),
    ("2026-01-31T08:00:00.25Z", 1_769_846_400_250),
    ("2026-01-31T08:00:00+05:30", 1_769_826_600_000),
]
UNREADABLE = ["tomorrow", "1000000000000000000", "-5", "٣", "2026-13-01", "08:00"]


@pytest.mark.parametrize(("text", "expected"), READABLE)
def test_time_has_the_same_meaning_in_options_and_arguments(text: str, expected: int) -> None:
    assert parse_time_ms(text) == expected
    assert parse_options({"path": "/store", "from": f" {text} "}).from_ms == expected
    assert parse(["delay", "--store", "/store", "--as-of", text], 5).as_of_ms == expected


@pytest.mark.parametrize("text", UNREADABLE)
def test_invalid_time_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_time_ms(text)
    with pytest.raises(OptionError, match=r"from is '.*': use a time such as 2026-01-31T08:00:00 \(UTC unless"):
        parse_options({"path": "/store", "from": text})
    with pytest.raises(UsageError, match=r"--as-of is '.*': use a time such as 2026-01-31T08:00:00Z, or ms since 1970"):
        parse(["delay", "--store", "/store", f"--as-of={text}"], 5)


def test_time_defaults_to_now_for_runs_and_to_no_limit_for_reads() -> None:
    assert parse(["delay", "--store", "/store"], 5).as_of_ms == 5
    assert parse_options({"path": "/store", "from": " ", "until": ""}).from_ms is None


def test_arguments_are_parsed_without_loading_spark() -> None:
    program = "import sys, delaymq_spark.command.arguments; print('pyspark' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "False"
