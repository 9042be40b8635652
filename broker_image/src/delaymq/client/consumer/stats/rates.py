"""Rates of the last minute and sums of the last hour, from periodic samples of increasing counters."""

from __future__ import annotations

from collections import deque
from typing import Final

from delaymq.protocol.bodies import ConsumeStatus

SAMPLE_INTERVAL_MS: Final = 10_000
MINUTE_SAMPLES: Final = 6
HOUR_SAMPLES: Final = 60


class Counters:
    """Counters of a topic since the consumer's start; times are sums in ms."""

    __slots__ = ("consumed", "failed", "handled", "handled_ms", "pulled", "pulls", "pulls_ms")

    def __init__(self) -> None:
        self.pulled = 0
        self.consumed = 0
        self.failed = 0
        self.pulls = 0
        """Number of pulls that found messages."""
        self.pulls_ms = 0.0
        self.handled = 0
        """Number of finished handler calls."""
        self.handled_ms = 0.0

    def sample(self) -> _Sample:
        """Return the current counters."""
        return (
            self.pulled, self.consumed, self.failed, self.pulls, self.pulls_ms, self.handled, self.handled_ms,
        )  # fmt: skip


_Sample = tuple[int, int, int, int, float, int, float]


class Rates:
    """Samples of a topic. Call `sample` every 10 s."""

    __slots__ = ("_counters", "_hour", "_minute", "_number")

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._minute: deque[_Sample] = deque([counters.sample()], maxlen=MINUTE_SAMPLES + 1)
        self._hour: deque[int] = deque([counters.failed], maxlen=HOUR_SAMPLES + 1)
        """Failures per minute."""
        self._number = 0

    def sample(self) -> None:
        """Record the current counters."""
        self._minute.append(self._counters.sample())
        self._number += 1
        if self._number % MINUTE_SAMPLES == 0:
            self._hour.append(self._counters.failed)

    def status(self) -> ConsumeStatus:
        """Return the rates from the samples of the last minute up to now. Means cover calls finished in that time."""
        then, now = self._minute[0], self._counters.sample()
        seconds = len(self._minute) * SAMPLE_INTERVAL_MS / 1000
        pulled, consumed, failed, pulls, pulls_ms, handled, handled_ms = (
            after - before for before, after in zip(then, now, strict=True)
        )
        return ConsumeStatus(
            pull_rt=pulls_ms / pulls if pulls else 0.0,
            pull_tps=pulled / seconds,
            consume_rt=handled_ms / handled if handled else 0.0,
            consume_ok_tps=consumed / seconds,
            consume_failed_tps=failed / seconds,
            consume_failed_msgs=self._counters.failed - self._hour[0],
        )
