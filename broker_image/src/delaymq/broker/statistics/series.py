"""Counts of one key, with past marks from which the last minute, hour and day are derived."""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

TICK_MS: Final = 10_000
"""Interval between marks, as in RocketMQ's samples."""
_NUMBERS: Final = 3


class Window(NamedTuple):
    """A time window that ends now, and its marks."""

    ticks: int
    """Ticks between two marks."""
    marks: int
    """Number of marks. The window covers one complete interval less than this, and the elapsed part of the current
    one."""
    at: int
    """Index of its first mark in a series."""


MINUTE: Final = Window(1, 7, 0)
HOUR: Final = Window(60, 7, MINUTE.marks)
DAY: Final = Window(360, 25, HOUR.at + HOUR.marks)
_WINDOWS: Final = (MINUTE, HOUR, DAY)
_MARKS: Final = DAY.at + DAY.marks


class Figures(NamedTuple):
    """RocketMQ's figures of a window: the sum, the rate per second, and the average per addition."""

    sum: int
    tps: float
    avgpt: float


class Series:
    """Totals since the key first occurred. Call `advance` before an addition if `tick` is not the current one.

    Marks are totals at the start of an interval. Marks between two additions are set at the second one, so idle keys
    cost nothing.
    """

    __slots__ = ("_marks", "bytes", "messages", "tick", "times")

    def __init__(self, tick: int) -> None:
        self.messages = 0
        self.bytes = 0
        self.times = 0
        """Number of additions."""
        self.tick = tick
        """Tick of the last addition."""
        self._marks: array[int] | None = None  # most keys that clients make up never need them

    def advance(self, tick: int) -> None:
        """Set the marks up to now. Call it before an addition."""
        marks = self._marks
        if marks is None:
            marks = self._marks = array("q", bytes(8 * _NUMBERS * _MARKS))
        totals = array("q", (self.messages, self.bytes, self.times))
        for window in _WINDOWS:
            last, now = self.tick // window.ticks, tick // window.ticks
            for number in range(max(last + 1, now - window.marks + 1), now + 1):
                at = _NUMBERS * (window.at + number % window.marks)
                marks[at : at + _NUMBERS] = totals
        self.tick = tick

    def figures(self, window: Window, elapsed_ms: int) -> tuple[Figures, Figures]:
        """Return messages and bytes in the window that ends at `elapsed_ms` by the clock of the series."""
        tick = elapsed_ms // TICK_MS
        if self.tick < tick:
            self.advance(tick)
        number = tick // window.ticks - window.marks + 1
        base = array("q", bytes(8 * _NUMBERS))
        if number > 0 and self._marks is not None:
            at = _NUMBERS * (window.at + number % window.marks)
            base = self._marks[at : at + _NUMBERS]
        # An interval shorter than a tick would make a single message a high rate.
        covered_ms = max(elapsed_ms - max(number, 0) * window.ticks * TICK_MS, TICK_MS)
        times = self.times - base[2]
        return (
            _figures(self.messages - base[0], times, covered_ms),
            _figures(self.bytes - base[1], times, covered_ms),
        )


def _figures(total: int, times: int, covered_ms: int) -> Figures:
    return Figures(total, total * 1000 / covered_ms, total / times if times > 0 else 0.0)
