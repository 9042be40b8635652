"""End of a suite that runs far longer than its ledger line: first the stacks of its processes, then signals.

pytest enables faulthandler in each of its processes, so SIGABRT makes a blocked one print where it is blocked, even in
a system call. pytest-xdist then reports the test that the process was running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

GRACE_S = 60.0
"""Time for a signal to take effect before the next one; clusters and servers are removed in this time."""


class Watch:
    """Ends the process `pid` and its descendants after `limit_s` seconds, unless it is cancelled before."""

    def __init__(self, pid: int, limit_s: float, grace_s: float = GRACE_S) -> None:
        self._pid = pid
        self._limit_s = limit_s
        self._grace_s = grace_s
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stop watching; the process has ended."""
        self._cancelled.set()
        self._thread.join()

    def _run(self) -> None:
        if self._cancelled.wait(self._limit_s):
            return
        print(
            f"The suite has been running for {self._limit_s / 60:.1f} min and is ended;"
            " the stacks of its Python processes follow",
            file=sys.stderr,
            flush=True,
        )
        for pid in descendants(self._pid):
            if is_python(pid):
                _send(pid, signal.SIGABRT)
        for number in (signal.SIGINT, signal.SIGABRT, signal.SIGKILL):
            if self._cancelled.wait(self._grace_s):
                return
            for pid in [self._pid, *(descendants(self._pid) if number is signal.SIGKILL else ())]:
                _send(pid, number)


def descendants(pid: int) -> list[int]:
    """Return the processes below `pid`, parents first."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may contain spaces and parentheses.
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = list(children.get(pid, ()))
    for each in found:
        found += children.get(each, ())
    return found


def is_python(pid: int) -> bool:
    """Whether a process runs Python; False if it has ended."""
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name.startswith("python")
    except OSError:
        return False


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
