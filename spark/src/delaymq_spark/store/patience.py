"""How long a broker may go without progress in its answer."""

from __future__ import annotations

import time
from typing import Final

# What must have come that the patience begins anew.
PROGRESS_BYTES: Final = 65_536


class Patience:
    """How long a question may go without progress: all its tries together, and the waits within each of them."""

    def __init__(self, seconds: float) -> None:
        """`seconds` without PROGRESS_BYTES more."""
        self.seconds = seconds
        self._fresh_bytes = 0
        self.renew()

    def renew(self) -> None:
        """What came so far need not be asked for again."""
        self._give_up_at = self._until = time.monotonic() + self.seconds

    def begin_try(self) -> None:
        """What has come of an answer that broke off counts no more."""
        self._until, self._fresh_bytes = self._give_up_at, 0

    def note_bytes(self, count: int) -> None:
        """A large answer may take its time while it comes; that gives no time for further tries."""
        self._fresh_bytes += count
        if self._fresh_bytes >= PROGRESS_BYTES:
            self._fresh_bytes = 0
            self._until = max(self._until, time.monotonic() + self.seconds)

    def left_s(self) -> float:
        """For another try."""
        return self._give_up_at - time.monotonic()

    def wait_s(self, most_s: float) -> float:
        """For the next bytes, at most `most_s`. TimeoutError when no time is left."""
        left_s = min(most_s, self._until - time.monotonic())
        if left_s <= 0:
            raise TimeoutError
        return left_s
