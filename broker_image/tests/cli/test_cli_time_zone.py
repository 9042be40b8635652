"""`deleteWhen` and log times use the zone of TZ, even where the system has no zone files."""

import os
import subprocess
import sys

import pytest

NOW_MS = 1_700_000_000_000
"""22:13 UTC, 23:13 in Berlin, 03:43 in Kolkata, 16:13 in Chicago."""
PROGRAM = f"""
from types import SimpleNamespace
from delaymq.cli.servers.time_zone import prepare_time_zone
from delaymq.clock import iso_time
from delaymq.config import BrokerConfig
from delaymq.store.retention import Retention
notes = prepare_time_zone()
hours = [
    hour
    for hour in range(24)
    if Retention._is_deletion_hour(
        SimpleNamespace(options=SimpleNamespace(delete_when=BrokerConfig(delete_when=f"{{hour:02}}").deletion_hours)),
        {NOW_MS},
    )
]
print(hours, iso_time({NOW_MS}), *notes)
"""


def said(**environment: str) -> str:
    variables = {key: value for key, value in os.environ.items() if key not in ("TZ", "TZDIR")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=variables | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("zones", [{}, {"TZDIR": "/no/such/folder"}], ids=["zones of the system", "no zones"])
@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("Asia/Kolkata", "[3] 2023-11-15T03:43:20.000+05:30"),
        ("America/Chicago", "[16] 2023-11-14T16:13:20.000-06:00"),
        ("CET-1CEST", "[23] 2023-11-14T23:13:20.000+01:00"),
        ("UTC", "[22] 2023-11-14T22:13:20.000+00:00"),
    ],
)
def test_deletion_hour_and_log_times_use_the_zone(zone: str, expected: str, zones: dict[str, str]) -> None:
    assert said(TZ=zone, **zones) == expected


def test_unknown_zone_is_reported_and_means_utc() -> None:
    text = said(TZ="Europe/Berln", TZDIR="/no/such/folder")
    assert text == (
        "[22] 2023-11-14T22:13:20.000+00:00"
        " TZ=Europe/Berln is an unknown time zone: log timestamps and deleteWhen use UTC"
    )
