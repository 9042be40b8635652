"""Memory, CPU time and descriptors of this process, from Linux; None where unavailable."""

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

_STATUS: Final = Path("/proc/self/status")
_DESCRIPTORS: Final = "/proc/self/fd"


class Memory(NamedTuple):
    """Memory use of the process, in bytes."""

    resident: int
    anonymous: int
    """Without file pages, such as the log's, which the system can reclaim."""


def memory() -> Memory | None:
    """Return the memory use of the process."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    kib = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.strip()}
    try:
        return Memory(int(kib["VmRSS"]) * 1024, int(kib["RssAnon"]) * 1024)
    except (KeyError, ValueError):
        return None


def processor_seconds() -> float:
    """Return user and system time since the process started."""
    return time.process_time()


def open_descriptors() -> int | None:
    """Return the number of open descriptors."""
    try:
        return len(os.listdir(_DESCRIPTORS)) - 1  # without the listing's own descriptor
    except OSError:
        return None
