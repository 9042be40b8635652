"""Clocks of a process in whole ms: the wall clock and a monotonic one. They are passed to domain code as arguments."""

import time
from datetime import UTC, datetime


def now_ms() -> int:
    """Return the milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Return the milliseconds of a monotonic clock, for the time between two events."""
    return time.monotonic_ns() // 1_000_000


def utc_time(ms: int) -> str:
    """Return `ms` since the epoch as ISO 8601 in UTC; the number if it is not within the years 1 to 9999."""
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_time(ms: int) -> str:
    """Return `ms` since the epoch as ISO 8601 in the process's time zone (TZ), with its offset from UTC."""
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(timespec="milliseconds")
