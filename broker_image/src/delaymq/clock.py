"""The one clock of a process: the wall clock, in whole milliseconds. Domain code gets it passed in."""

import time
from datetime import datetime


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def iso_time(ms: int) -> str:
    """`ms` since the epoch as ISO 8601 in the process's time zone (TZ), with its offset from UTC."""
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(timespec="milliseconds")
