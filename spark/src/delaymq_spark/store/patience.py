"""Time limits of a request to a broker."""

from __future__ import annotations

import time
from typing import Final

from delaymq.http_client import Pace

CONNECT_TIMEOUT_S: Final = 10.0
RESPONSE_TIMEOUT_S: Final = 45.0
"""Longest wait for the next bytes: a cold disk under load responds late, a vanished broker never."""
MIN_BYTES_PER_S: Final = 65_536
"""A response that is slower on average is abandoned: 4 MiB would take more than a minute."""
PROGRESS_BYTES: Final = 65_536
"""Number of bytes that renew the patience."""


class Patience(Pace):
    """Longest time without progress: over all tries of a request, and within each of them."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: longest time until PROGRESS_BYTES more have arrived."""
        super().__init__(seconds)
        self._fresh_bytes = 0
        self._late_at: float | None = None
        self.renew()

    def renew(self) -> None:
        """Restart the time limit: the bytes that have arrived need not be requested again."""
        self._give_up_at = self._until = time.monotonic() + self.seconds

    def begin_try(self) -> None:
        """Start another try: bytes of an incomplete response no longer count."""
        self._until, self._fresh_bytes, self._late_at = self._give_up_at, 0, None

    def begin_body(self, most_bytes: int) -> None:
        """Limit the time for a body of at most `most_bytes`."""
        self._late_at = time.monotonic() + RESPONSE_TIMEOUT_S + most_bytes / MIN_BYTES_PER_S

    def note_bytes(self, count: int) -> None:
        """Extend the current try while bytes arrive; the time for further tries stays the same."""
        self._fresh_bytes += count
        if self._fresh_bytes >= PROGRESS_BYTES:
            self._fresh_bytes = 0
            self._until = max(self._until, time.monotonic() + self.seconds)

    def left_s(self) -> float:
        """Return the time left for another try, in seconds."""
        return self._give_up_at - time.monotonic()

    def connect_s(self, addresses: int) -> float:
        """Return the longest wait for each of `addresses` addresses, in seconds. TimeoutError when no time is left."""
        return min(CONNECT_TIMEOUT_S, self.wait_s() / max(addresses, 1))

    def wait_s(self) -> float:
        """Return the longest wait for the next bytes, in seconds. TimeoutError when no time is left."""
        ends_at = self._until if self._late_at is None else min(self._until, self._late_at)
        left_s = min(RESPONSE_TIMEOUT_S, ends_at - time.monotonic())
        if left_s <= 0:
            raise TimeoutError
        return left_s
