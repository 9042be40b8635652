"""Work on the index of pending messages that is done in short steps while the broker has nothing more urgent to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from delaymq.broker.delivery.hand_over import HandOver
from delaymq.schedule.timeline import Timeline, TimelineDamagedError
from delaymq.throttled_log import ThrottledLogger

_MERGE_RETRY_MS: Final = 10_000
"""Interval between attempts to merge: each of them may fill the rest of the disk for a moment."""


class Upkeep:
    """Applies changes of groups to their messages, and merges runs. A failed merge does not delay the former."""

    def __init__(
        self,
        timeline: Timeline,
        hand_over: HandOver,
        announce: Callable[[int], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`announce` is called with due times that may be earlier than all others."""
        self._timeline = timeline
        self._hand_over = hand_over
        self._announce = announce
        self._now_ms = now_ms
        self._throttled = ThrottledLogger(logging.getLogger(__name__), now_ms)
        self._merge_at_ms = 0

    def step(self) -> bool:
        """Take one step of each; return whether there is more to do."""
        return self._sweep() | self._merge()

    def _sweep(self) -> bool:
        try:
            has_swept = self._timeline.sweep.step()
        except OSError as error:
            self._hand_over.stop(error)
            return False
        if has_swept and (due_ms := self._timeline.next_due_ms()) is not None:
            self._announce(due_ms)
        return has_swept

    def _merge(self) -> bool:
        now_ms = self._now_ms()
        if now_ms < self._merge_at_ms <= now_ms + _MERGE_RETRY_MS:
            return False
        try:
            return self._timeline.maintain()
        except TimelineDamagedError as error:
            self._hand_over.stop(error)
        except OSError as error:
            self._merge_at_ms = now_ms + _MERGE_RETRY_MS
            self._throttled.warning("runs of the timeline cannot be merged (the broker retries): %s", error)
        return False
