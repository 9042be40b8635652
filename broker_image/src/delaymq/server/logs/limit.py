"""Rate limit per logger, so that neither peers nor a part of the broker can flood the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

BURST_LINES: Final = 200
"""Maximum burst; a recovery may log a line for each of many files."""
LINES_PER_SECOND: Final = 20.0
DEBUG_FACTOR: Final = 50
"""Factor for debug lines, which are requested explicitly and useless with gaps."""


class LineLimit:
    """Token bucket per logger; suppressed lines are counted, and reported with the next admitted line."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._buckets: dict[tuple[str, bool], _Bucket] = {}

    def admit(self, record: logging.LogRecord) -> int | None:
        """Return the number of lines suppressed before this one; None: this line is suppressed, too."""
        is_debug = record.levelno <= logging.DEBUG
        key = (record.name, is_debug)
        bucket = self._buckets.get(key)
        now_s = self._monotonic_s()
        factor = DEBUG_FACTOR if is_debug else 1
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(BURST_LINES * factor, now_s)
        return bucket.take(now_s, factor)

    def suppressed(self) -> dict[str, int]:
        """Return and reset the unreported numbers of suppressed lines by logger."""
        counts: dict[str, int] = {}
        for (name, _), bucket in self._buckets.items():
            if bucket.suppressed:
                counts[name] = counts.get(name, 0) + bucket.suppressed
                bucket.suppressed = 0
        return counts


class _Bucket:
    def __init__(self, lines: float, now_s: float) -> None:
        self.suppressed = 0
        self._lines = lines
        self._at_s = now_s

    def take(self, now_s: float, factor: int) -> int | None:
        grown = self._lines + (now_s - self._at_s) * LINES_PER_SECOND * factor
        self._lines, self._at_s = min(grown, BURST_LINES * factor), now_s
        if self._lines < 1:
            self.suppressed += 1
            return None
        self._lines -= 1
        suppressed, self.suppressed = self.suppressed, 0
        return suppressed
