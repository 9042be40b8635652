"""Put times of messages in RocketMQ's form: the longest one, and a distribution."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

SLOW_S: Final = 0.001
"""Shorter put times are not recorded, because sends would have to pay for it."""
PERIOD_MS: Final = 60_000
"""Period of the distribution. The last complete period is published, as by RocketMQ's broker."""
# Buckets of putMessageDistributeTime, which exporters split at blanks and colons, and the start of each bucket but the
# first in ms:
_NAMES: Final = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
_BEGINS_MS: Final = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
assert len(_NAMES) == len(_BEGINS_MS) + 1


class PutTimes:
    """Distribution of put times. Only slow ones are recorded; the number of the others follows from the total."""

    def __init__(self, now_ms: int) -> None:
        self.longest_ms = 0
        """Longest put time since the start."""
        self._slow = [0] * len(_BEGINS_MS)
        self._published = [0] * len(_NAMES)
        self._began_ms = now_ms
        self._puts_before = 0

    def slow(self, took_s: float) -> None:
        """Record that storing a message or batch took `took_s`, which is SLOW_S or more."""
        took_ms = int(took_s * 1_000)
        self.longest_ms = max(self.longest_ms, took_ms)
        self._slow[max(bisect_right(_BEGINS_MS, took_ms) - 1, 0)] += 1

    def advance(self, now_ms: int, puts: int) -> None:
        """End the period if it is over. `puts` is the number of messages since the start. Call it every second."""
        # The second comparison keeps a clock that was set back from extending the period.
        if self._began_ms <= now_ms < self._began_ms + PERIOD_MS:
            return
        self._published = [max(puts - self._puts_before - sum(self._slow), 0), *self._slow]
        self._slow = [0] * len(_BEGINS_MS)
        self._began_ms, self._puts_before = now_ms, puts

    def distribution(self) -> str:
        """Return each bucket with its count: `[<=0ms]:12 [0~10ms]:3 …`."""
        return "".join(f"[{name}]:{count} " for name, count in zip(_NAMES, self._published, strict=True))
