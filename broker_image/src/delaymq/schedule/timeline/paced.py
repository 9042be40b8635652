"""Paced release of overdue timed messages: evenly over a period, in the order of their due times."""

from __future__ import annotations

from delaymq.schedule.scheduler import Entry, Lane
from delaymq.schedule.timeline.timeline import Timeline


class PacedTimeline:
    """Due source with a time slot for each overdue message. Messages that become due later are not affected."""

    lane = Lane.USERS

    def __init__(self, timeline: Timeline, up_to_ms: int, start_ms: int, until_ms: int) -> None:
        """Release the messages due at `up_to_ms` evenly from `start_ms` to `until_ms`. OSError, damage."""
        self._timeline = timeline
        timeline.begin_pacing(up_to_ms)
        self.restart(start_ms, until_ms)

    def restart(self, start_ms: int, until_ms: int) -> None:
        """Release the messages that have not been taken evenly from `start_ms` to `until_ms`."""
        self._total = self._timeline.paced_left
        self._given = 0
        self._start_ms = start_ms
        self._span_ms = max(until_ms - start_ms, 0)

    @property
    def left(self) -> int:
        """Number of messages that have not been taken."""
        return self._timeline.paced_left

    def next_due_ms(self) -> int | None:
        """Return the time slot of the next message; None without one."""
        due_ms = self._timeline.paced_due_ms()
        # It may be due later than its slot if the clock was set back.
        return None if due_ms is None else max(self._slot_ms(self._given), due_ms)

    def _slot_ms(self, number: int) -> int:
        """Return the time slot of a message. Messages that were put back may exceed the total."""
        total = max(self._total, 1)
        return self._start_ms + min(number, total - 1) * self._span_ms // total

    def take(self, now_ms: int, count: int) -> list[Entry]:
        """Remove and return at most `count` messages whose time slots have come. OSError, TimelineDamagedError."""
        due = 0
        while due < count and self._slot_ms(self._given + due) <= now_ms:
            due += 1
        taken = self._timeline.take_paced(now_ms, due)
        self._given += len(taken)
        return taken

    def give_back(self, entries: list[Entry]) -> None:
        """Put back entries that were taken but not attempted; they are next."""
        self._timeline.give_back(entries)
        self._given = max(self._given - len(entries), 0)

    def end(self) -> None:
        """Return the rest to the topics. OSError, TimelineDamagedError."""
        self._timeline.end_pacing()
