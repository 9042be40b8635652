"""Limits of the rate at which the due messages of a topic are taken, so that its consumers are not overrun."""

from __future__ import annotations

from typing import Final, NamedTuple

_BURST_MS: Final = 100
"""Messages of this time may be taken together."""
_REVIEW_MS: Final = 1_000
"""Interval between counts of the messages that are spread over a window."""


class Smoothing(NamedTuple):
    """Limits of a topic: a rate, a window, or both, of which the higher rate applies."""

    per_second: int | None = None
    """Messages per second."""
    window_ms: int | None = None
    """Messages that are due together are taken evenly over this time in ms."""


class Rate:
    """Rate of one topic. Times are those of the wall clock; one that is set back only delays."""

    def __init__(self, smoothing: Smoothing) -> None:
        self.smoothing = smoothing
        self._per_ms = (smoothing.per_second or 0) / 1_000
        self._allowance = 0.0
        self._at_ms: int | None = None
        self._review_ms = 0

    def must_count(self, now_ms: int) -> bool:
        """Whether `spread` is to be called, because a burst has begun or may have grown."""
        return self.smoothing.window_ms is not None and not now_ms < self._review_ms <= now_ms + _REVIEW_MS

    def spread(self, messages: int, now_ms: int) -> None:
        """Let this number of due messages be taken within the window; never more slowly than before."""
        assert self.smoothing.window_ms is not None
        self._review_ms = now_ms + _REVIEW_MS
        self._per_ms = max(self._per_ms, messages / self.smoothing.window_ms)

    def allowance(self, now_ms: int) -> int:
        """Return the number of messages that may be taken now."""
        if self._at_ms is None:
            self._allowance = 1.0
        elif now_ms > self._at_ms:
            most = max(self._per_ms * _BURST_MS, 1.0)
            self._allowance = min(self._allowance + (now_ms - self._at_ms) * self._per_ms, most)
        self._at_ms = now_ms
        return int(self._allowance)

    def take(self, messages: int) -> None:
        """Note that messages were taken."""
        self._allowance -= messages

    def next_ms(self, now_ms: int) -> int:
        """Return the time at which the next message may be taken."""
        if self._allowance >= 1:
            return now_ms
        return now_ms + max(1, -int((self._allowance - 1) // max(self._per_ms, 1e-9)))

    def end_burst(self) -> None:
        """Note that no message is due any more."""
        self._per_ms = (self.smoothing.per_second or 0) / 1_000
        self._review_ms = 0
