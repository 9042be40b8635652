"""Limits of the rate at which the due messages of a topic are taken, so that its consumers are not overrun."""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

_BURST_MS: Final = 100
"""Messages of this time may be taken together."""
_REVIEWS: Final = 50
"""Counts of the messages that are spread over a window, per window."""
_MIN_REVIEW_MS: Final = 10


class Smoothing(NamedTuple):
    """Limits of a topic: a rate, a window, or both, of which the lower rate applies."""

    per_second: int | None = None
    """Maximum messages per second, whatever the window."""
    window_ms: int | None = None
    """Messages that are due together are taken evenly over this time in ms, and later only because of the rate."""


class Rate:
    """Rate of one topic. Times are those of the wall clock; one that is set back only delays."""

    def __init__(self, topic: str, smoothing: Smoothing, until_ms: int | None = None) -> None:
        """With `until_ms`, everything that is due before that time is taken evenly until then, instead of a window."""
        self.topic = topic
        self.smoothing = smoothing
        self.until_ms = until_ms
        self._most = inf if smoothing.per_second is None else smoothing.per_second / 1_000
        self._per_ms = self._base
        self._allowance = 0.0
        self._at_ms: int | None = None
        self._review_ms = 0
        self._interval_ms = 0

    @property
    def _is_fixed(self) -> bool:
        return self.smoothing.window_ms is None and self.until_ms is None

    @property
    def _base(self) -> float:
        """Messages per ms without a burst."""
        return self._most if self._is_fixed else 0.0

    def must_count(self, now_ms: int) -> bool:
        """Whether `spread` is to be called, because a burst has begun or may have grown."""
        return not self._is_fixed and not now_ms < self._review_ms <= now_ms + self._interval_ms

    def spread(self, messages: int, now_ms: int) -> None:
        """Let this number of due messages be taken in time; never more slowly than before, or faster than the rate."""
        if self.until_ms is not None:
            left_ms = self.until_ms - now_ms
            self._interval_ms = max(left_ms // _REVIEWS, _MIN_REVIEW_MS)
        else:
            # Messages that come due just after a count are counted by the next one, and have less time.
            window_ms = self.smoothing.window_ms or 0
            self._interval_ms = window_ms // _REVIEWS
            left_ms = window_ms - self._interval_ms
        self._review_ms = now_ms + self._interval_ms
        self._per_ms = min(max(self._per_ms, messages / max(left_ms, 1)), self._most)

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
        """Return the time at which the next message may be taken, or at which `spread` is to be called."""
        if self._allowance >= 1:
            return now_ms
        next_ms = now_ms + max(1, -int((self._allowance - 1) // max(self._per_ms, 1e-9)))
        return next_ms if self._is_fixed else max(min(next_ms, self._review_ms), now_ms + 1)

    def end_burst(self) -> None:
        """Note that no message is due any more."""
        self._per_ms = self._base
        self._review_ms = 0
