"""Data of a process from /proc: processor time, memory, start time."""

from __future__ import annotations

import os
import time
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _stat_fields(pid: int) -> list[str]:
    # The second field, the program's name in parentheses, may contain any character: fields are counted from its end.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def processor_s(pid: int) -> float:
    """Return user and system time of all threads so far."""
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def started_ms(pid: int) -> float:
    """Return the process's start time as wall clock in ms (with the resolution of a clock tick, 10 ms)."""
    since_boot_s = int(_stat_fields(pid)[19]) / TICKS_PER_S
    return (time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s) * 1000


def memory_mib(pid: int, field: str) -> float:
    """Return a field of /proc/PID/status in MiB: VmRSS (all resident memory), RssAnon (without files)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1024
    raise KeyError(f"/proc/{pid}/status has no {field}")
