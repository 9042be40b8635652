"""Waiting for what happens in its own time, but not forever."""

import time
from collections.abc import Callable
from typing import TypeVar

from harness.driver import ClientError

WAIT_S = 60.0
LOOK_S = 0.1

FoundT = TypeVar("FoundT")


def until(happens: Callable[[], FoundT], what: str) -> FoundT:
    """Return what ``happens`` returns once it is true; a client's error, or a missing file, counts as not yet."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            found = happens()
            if found:
                return found
        except (ClientError, OSError):
            pass
        assert time.monotonic() < deadline, f"within {WAIT_S:g} s never: {what}"
        time.sleep(LOOK_S)
