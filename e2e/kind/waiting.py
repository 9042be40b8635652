"""Waiting with a time limit: every wait of these tests uses this module, which reports the last observation on
failure.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from cluster.errors import ClusterError

T = TypeVar("T")

EVERY_S = 0.25
SHOWN_CHARS = 1500


class NotYetError(Exception):
    """The expected state is not reached yet; the text describes the current state."""


def wait_until(what: str, ask: Callable[[], T | None], *, timeout_s: float, every_s: float = EVERY_S) -> T:
    """Return the first result of ``ask`` that is neither None nor False.

    ``ask`` may raise NotYetError with the current state, or ClusterError (an API server that is briefly unavailable).
    Raises AssertionError with the last state after ``timeout_s``.
    """
    began = time.monotonic()
    seen: object = None
    while True:
        try:
            answer = ask()
            if answer is not None and answer is not False:
                return answer
            seen = answer
        except (NotYetError, ClusterError) as e:
            seen = e
        if time.monotonic() - began > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}; last seen: {str(seen)[-SHOWN_CHARS:]}")
        time.sleep(every_s)


def stays(what: str, ask: Callable[[], object], *, for_s: float, every_s: float = EVERY_S) -> None:
    """Raise AssertionError as soon as ``ask`` returns a false value within ``for_s``."""
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        assert ask(), f"no longer true: {what}"
        time.sleep(every_s)
