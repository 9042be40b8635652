"""Waiting with a time limit for asynchronous effects."""

import time
from collections.abc import Callable
from typing import TypeVar

from harness.driver import ClientError

WAIT_S = 60.0
LOOK_S = 0.1

FoundT = TypeVar("FoundT")


def until(happens: Callable[[], FoundT], what: str, limit_s: float = WAIT_S) -> FoundT:
    """Return the first true result of ``happens``; a client error or missing file counts as not yet true."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            found = happens()
            if found:
                return found
        except (ClientError, OSError):
            pass
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(LOOK_S)
