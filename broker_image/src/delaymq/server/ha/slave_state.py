"""State of one connection of a plain slave. Pure: bytes and times in, verdicts out."""

from __future__ import annotations

from typing import Final

from delaymq.protocol.ha import ReportReader

STALLED_INTERVALS: Final = 3
"""Housekeeping intervals after which a slave that reports, but acknowledges nothing, is disconnected."""
_SPARE_REPORTS: Final = 1_000
_REPORTS_PER_S: Final = 100
"""A slave sends one report for each range and one per heartbeat interval; more is a flood."""


class SlaveState:
    """Progress of one slave. Times are those of a monotonic clock, in seconds."""

    def __init__(self, now: float) -> None:
        self.sent = -1
        """Offset of the next byte to be sent; −1 before the first report."""
        self.acknowledged = -1
        """End of the slave's log, as it reported; for an empty log, where it begins."""
        self.sent_at = now
        """Time of the last range or heartbeat."""
        self.connected_at = now
        self._reader = ReportReader()
        self._is_empty = False
        self._reports = 0
        self._ranges = 0
        self._reported_at = now
        self._progressed_at = now

    @property
    def is_started(self) -> bool:
        """Whether the slave has reported where to begin."""
        return self.sent >= 0

    def receive(self, data: bytes, begin: int, end: int, now: float) -> str:
        """Take note of reports, and return why the connection has to be closed; empty if it continues.

        The log that the slave copies has the bytes from `begin` up to `end`.
        """
        reports = self._reader.feed(data)
        if reports is None:
            return ""
        count, first, last = reports
        self._reported_at = now
        self._reports += count
        if self._reports > _SPARE_REPORTS + self._ranges + _REPORTS_PER_S * (now - self.connected_at):
            return f"{self._reports} reports for {self._ranges} ranges"
        if not self.is_started:
            problem = self._start(first, begin, end, now)
            if problem:
                return problem
        return self._acknowledge(last, now)

    def _start(self, first: int, begin: int, end: int, now: float) -> str:
        self._is_empty = first == 0
        if self._is_empty:
            first = begin
        elif first > end:
            return (
                f"its log ends at offset {first}, beyond the end {end} of this one: if this broker lost the bytes in"
                " between, empty the slave's store"
            )
        elif first < begin:
            return f"its log ends at offset {first}, and this one begins at {begin}: empty the slave's store"
        self.sent = self.acknowledged = first
        self._progressed_at = now
        return ""

    def _acknowledge(self, offset: int, now: float) -> str:
        if self._is_empty and offset == 0:
            return ""
        if not self.acknowledged <= offset <= self.sent:
            return f"it reports offset {offset} after {self.acknowledged}, and was sent bytes up to {self.sent}"
        if offset > self.acknowledged:
            self.acknowledged, self._is_empty = offset, False
            self._progressed_at = now
        return ""

    def note_sent(self, end: int, ranges: int, now: float) -> None:
        """Take note of `ranges` ranges, the last of which ends at `end`."""
        if self.acknowledged == self.sent:
            self._progressed_at = now
        self.sent, self.sent_at = end, now
        self._ranges += ranges

    def overdue(self, housekeeping_s: float, now: float) -> str:
        """Return why the connection has to be closed by now; empty if it continues."""
        if now - self._reported_at > housekeeping_s:
            return f"no report for {now - self._reported_at:.0f} s"
        if self.acknowledged < self.sent and now - self._progressed_at > STALLED_INTERVALS * housekeeping_s:
            return f"bytes from offset {self.acknowledged} on not acknowledged for {now - self._progressed_at:.0f} s"
        return ""
