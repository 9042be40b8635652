"""What was counted for one key, with marks of the past from which the last minute, hour and day are told."""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

TICK_MS: Final = 10_000
"""Marks are set this far apart, as RocketMQ samples."""
_NUMBERS: Final = 3


class Window(NamedTuple):
    """A stretch of time up to now, and the marks that are kept for it."""

    ticks: int
    """Between two marks."""
    marks: int
    """The window is one less of these whole stretches, and what has passed of the one that goes on."""
    at: int
    """Where its marks begin among those of a series."""


MINUTE: Final = Window(1, 7, 0)
HOUR: Final = Window(60, 7, MINUTE.marks)
DAY: Final = Window(360, 25, HOUR.at + HOUR.marks)
_WINDOWS: Final = (MINUTE, HOUR, DAY)
_MARKS: Final = DAY.at + DAY.marks


class Figures(NamedTuple):
    """What RocketMQ tells of a window: the sum, how much a second, and how much each time."""

    sum: int
    tps: float
    avgpt: float


class Series:
    """Totals since the key came up. Who adds calls `advance` first if `tick` is not the present one.

    Marks are totals at the beginning of a stretch; those between two additions are filled in when the second comes, so
    that keys at rest cost nothing.
    """

    __slots__ = ("_marks", "bytes", "messages", "tick", "times")

    def __init__(self, tick: int) -> None:
        self.messages = 0
        self.bytes = 0
        self.times = 0
        """How often it was added."""
        self.tick = tick
        """When it was added last."""
        self._marks: array[int] | None = None  # most made-up keys never need them

    def advance(self, tick: int) -> None:
        """Sets the marks up to now; to be called before something is added."""
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
        """Messages and bytes in the window that ends at `elapsed_ms`, the time of the series' ticks."""
        tick = elapsed_ms // TICK_MS
        if self.tick < tick:
            self.advance(tick)
        number = tick // window.ticks - window.marks + 1
        base = array("q", bytes(8 * _NUMBERS))
        if number > 0 and self._marks is not None:
            at = _NUMBERS * (window.at + number % window.marks)
            base = self._marks[at : at + _NUMBERS]
        # Less than a tick would make a single message a high rate.
        covered_ms = max(elapsed_ms - max(number, 0) * window.ticks * TICK_MS, TICK_MS)
        times = self.times - base[2]
        return (
            _figures(self.messages - base[0], times, covered_ms),
            _figures(self.bytes - base[1], times, covered_ms),
        )


def _figures(total: int, times: int, covered_ms: int) -> Figures:
    return Figures(total, total * 1000 / covered_ms, total / times if times > 0 else 0.0)
