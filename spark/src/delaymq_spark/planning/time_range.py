"""Segments excluded by a read by store time.

Records are appended in order, so those of a segment lie between its first record's store time and that of the next
segment. Since a broker's clock can be changed, CLOCK_MARGIN_MS is added at both ends.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from delaymq.store.reader import SegmentInfo

from delaymq_spark.scan.walk import sound_at
from delaymq_spark.store.broker_client import NoAnswerError
from delaymq_spark.store.segments import open_segment

CLOCK_MARGIN_MS: Final = 3_600_000
_logger = logging.getLogger(__name__)


class FirstTimes:
    """Store times of segments' first records, each read once and only on demand."""

    def __init__(self) -> None:
        self._found: dict[int, int | None] = {}
        self._may_ask = True

    def of(self, info: SegmentInfo) -> int | None:
        """Return the time in ms; None if no valid record starts the segment, or it is unreadable. StorePathError."""
        if info.base not in self._found:
            self._found[info.base] = self._look(info) if self._may_ask else None
        return self._found[info.base]

    def _look(self, info: SegmentInfo) -> int | None:
        try:
            file = open_segment(info)
            try:
                return sound_at(file, 0)
            finally:
                file.close()
        except NoAnswerError as error:
            # Each further segment would wait as long. Segments whose time is unknown are read.
            _logger.warning("segments cannot be excluded by time, so all are read: %s", error.strerror)
            self._may_ask = False
            return None
        except OSError:
            return None


def excluded_segments(
    segments: Sequence[SegmentInfo], first: FirstTimes, from_ms: int | None, until_ms: int | None
) -> set[int]:
    """Return offsets of the segments, given in order, without a record from `from_ms` on and before `until_ms`.

    Uncertain segments are not excluded. StorePathError.
    """
    if from_ms is None and until_ms is None:
        return set()
    found = set()
    for number, info in enumerate(segments):
        own = first.of(info)
        following = first.of(segments[number + 1]) if number + 1 < len(segments) else None
        if own is None:
            continue
        if following is not None and from_ms is not None and max(own, following) + CLOCK_MARGIN_MS < from_ms:
            found.add(info.base)
        earliest = own if following is None else min(own, following)
        if until_ms is not None and earliest - CLOCK_MARGIN_MS >= until_ms:
            found.add(info.base)
    return found
