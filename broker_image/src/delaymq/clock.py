"""The one clock of a process: the wall clock, in whole milliseconds. Domain code gets it passed in."""

import time


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
