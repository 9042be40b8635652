"""What the system says of this process: memory, processor, descriptors. Linux; None where it does not tell."""

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

_STATUS: Final = Path("/proc/self/status")
_DESCRIPTORS: Final = "/proc/self/fd"


class Memory(NamedTuple):
    """Bytes in memory."""

    resident: int
    anonymous: int
    """Without the pages of files, such as the log's, which the system takes back when it wants them."""


def memory() -> Memory | None:
    """What the process has in memory."""
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
    """User and system time since the process began."""
    return time.process_time()


def open_descriptors() -> int | None:
    """Files, sockets and the like that are open."""
    try:
        return len(os.listdir(_DESCRIPTORS)) - 1  # without the one that lists
    except OSError:
        return None
