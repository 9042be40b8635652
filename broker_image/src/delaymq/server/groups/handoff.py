"""What a supervisor tells the process of a group through its standard input, and what that process reports."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from delaymq.server.errors import ServerError

MAX_BYTES: Final = 64 * 1024
"""Limit of either message."""
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Handoff:
    """Values for one process of a group."""

    supervisor: int
    """Process id of the supervisor."""
    http_token: str
    """Token that the group's HTTP server requires; known to the supervisor only."""
    keys: Mapping[str, str]
    """Settings that take precedence over all others."""

    def encode(self) -> bytes:
        """Return one line."""
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a process whose broker has started."""

    address: str
    """Address that the broker advertises."""
    http_port: int
    """Port of its HTTP server on loopback."""

    def send(self) -> None:
        """Write the report to standard output, which is standard error afterwards."""
        data = json.dumps(asdict(self)).encode() + b"\n"
        os.write(sys.stdout.fileno(), data)  # fits into a new pipe
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def received_handoff() -> Handoff:
    """Read the handoff from standard input, and end this process with the supervisor. Raises ServerError."""
    try:
        handoff = Handoff(**json.loads(sys.stdin.buffer.readline(MAX_BYTES)))
    except (ValueError, TypeError) as error:
        raise ServerError("--group is an option for supervisors: start all groups with --groups N") from error
    _end_with(handoff.supervisor)
    return handoff


def report_of(line: bytes) -> Report | None:
    """Return the report of a process; None for any other line."""
    try:
        return Report(**json.loads(line))
    except (ValueError, TypeError):
        return None


def _end_with(supervisor: int) -> None:
    """Have the kernel kill this process when the supervisor ends, however it ends."""
    import ctypes  # needed by these processes only

    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise ServerError(f"cannot follow the supervisor: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != supervisor:
        os._exit(1)  # it has ended in the meantime
