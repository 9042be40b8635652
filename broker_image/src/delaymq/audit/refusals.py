"""Rate limit of refused attempts, so that they neither fill the audit log nor displace the changes in it."""

from __future__ import annotations

from typing import Final

BURST: Final = 20
"""Refused attempts of one network and account that are recorded in sequence."""
INTERVAL_S: Final = 10.0
"""Time after which one more is recorded."""
TOTAL_BURST: Final = 200
TOTAL_INTERVAL_S: Final = 5.0
"""The same for all together."""
MAX_KEYS: Final = 1_024
"""Networks and accounts that are distinguished; the least recent one is forgotten, and its count added to the total."""

Key = tuple[bytes, str]


class Refusals:
    """Token buckets by network and account, and one for all."""

    def __init__(self, now_s: float) -> None:
        self._total = _Bucket(TOTAL_BURST, now_s)
        self._buckets: dict[Key, _Bucket] = {}
        self.suppressed = 0
        """Number of all attempts that were not recorded."""
        self._unreported = 0
        """Those of forgotten keys."""

    def admit(self, key: Key, now_s: float) -> int | None:
        """Return how many attempts of the key were suppressed since its last line. None: suppress this one, too."""
        bucket = self._buckets.pop(key, None) or _Bucket(BURST, now_s)
        self._buckets[key] = bucket  # the most recent one
        if len(self._buckets) > MAX_KEYS:
            oldest = self._buckets.pop(next(iter(self._buckets)))
            self._unreported += oldest.suppressed
        # A network that has used up its share takes nothing from the others'.
        is_within = bucket.has_one(now_s, BURST, INTERVAL_S)
        if not is_within or not self._total.has_one(now_s, TOTAL_BURST, TOTAL_INTERVAL_S):
            bucket.suppressed += 1
            self.suppressed += 1
            return None
        bucket.lines -= 1
        self._total.lines -= 1
        count, bucket.suppressed = bucket.suppressed, 0
        return count

    def unreported(self) -> int:
        """Return and reset the number of suppressed attempts that no line states."""
        count = self._unreported + sum(bucket.suppressed for bucket in self._buckets.values())
        self._unreported = 0
        for bucket in self._buckets.values():
            bucket.suppressed = 0
        return count


class _Bucket:
    __slots__ = ("_at_s", "lines", "suppressed")

    def __init__(self, lines: float, now_s: float) -> None:
        self.lines = lines
        self.suppressed = 0
        self._at_s = now_s

    def has_one(self, now_s: float, burst: int, interval_s: float) -> bool:
        self.lines = min(self.lines + (now_s - self._at_s) / interval_s, burst)
        self._at_s = now_s
        return self.lines >= 1
