"""Series of all keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, TypeVar

from delaymq.broker.statistics.series import DAY, MINUTE, TICK_MS, Series

MAX_KEYS: Final = 20_000
"""Maximum number of each kind of key (topics, groups in topics, queues of groups). Clients choose the names, and each
takes 1 KB after being used for longer than a tick.
"""
_IDLE_TICKS: Final = DAY.ticks * DAY.marks

K = TypeVar("K", bound=Hashable)
GroupKey = tuple[str, str]
"""Topic and group."""
QueueKey = tuple[int, str, str]
"""Queue, topic and group."""


class Statistics:
    """Series by key. Times are wall-clock times in ms. `advance` has to be called every second."""

    def __init__(self, now_ms: int) -> None:
        self.tick = 0
        """Tick of the series, counted from the start."""
        self.puts: dict[str, Series] = {}
        """Messages that producers or consumers' send-backs stored, by topic."""
        self.copies: dict[str, Series] = {}
        """Messages that deliveries and commits stored under their real topic."""
        self.queue_puts: dict[int, Series] = {}
        """Delayed messages by queue of the schedule topic."""
        self.gets: dict[GroupKey, Series] = {}
        """Messages that groups received."""
        self.latency: dict[QueueKey, Series] = {}
        """Durations of reads for groups, in ms."""
        self.queue_gets: dict[int, Series] = {}
        """Delivered delayed messages by queue of the schedule topic."""
        self.send_backs: dict[GroupKey, Series] = {}
        self.broker_puts = Series(0)
        self.broker_gets = Series(0)
        self._elapsed_ms = 0
        self._advanced_ms = now_ms
        self._swept_tick = 0
        self._unlisted = Series(0)

    def advance(self, now_ms: int) -> int:
        """Set the current time. Returns the ms since the start. Time does not advance if the clock is set back."""
        self._elapsed_ms += max(now_ms - self._advanced_ms, 0)
        self._advanced_ms = now_ms
        self.tick = self._elapsed_ms // TICK_MS
        return self._elapsed_ms

    # Counting. The hot paths of sends and pulls have it inline in broker.stats.

    def series(self, table: dict[K, Series], key: K) -> Series:
        """Return the series of a key, ready for an addition; a discarded one if there are too many keys."""
        series = table.get(key)
        if series is None:
            if len(table) >= MAX_KEYS:
                self._sweep()
                if len(table) >= MAX_KEYS:
                    return self._unlisted
            series = table[key] = Series(self.tick)
        elif series.tick != self.tick:
            series.advance(self.tick)
        return series

    def add(self, table: dict[K, Series], key: K, size: int = 0, messages: int = 1, times: int = 1) -> None:
        """Count messages of `size` bytes in total, stored or read in `times` calls."""
        series = table.get(key)
        if series is None or series.tick != self.tick:
            series = self.series(table, key)
        series.messages += messages
        series.bytes += size
        series.times += times

    def set_totals(self, series: Series, messages: int) -> None:
        """Set the total of a series that is counted elsewhere. Precise enough if called every second."""
        if series.tick != self.tick:
            series.advance(self.tick)
        series.messages = messages

    def _sweep(self) -> None:
        # At most once per tick: if all keys are in use, another sweep finds nothing.
        if self._swept_tick == self.tick:
            return
        self._swept_tick = self.tick
        oldest = self.tick - _IDLE_TICKS
        _drop(self.puts, lambda key, series: series.tick < oldest)
        _drop(self.copies, lambda key, series: series.tick < oldest)
        _drop(self.gets, lambda key, series: series.tick < oldest)
        _drop(self.latency, lambda key, series: series.tick < oldest)
        _drop(self.send_backs, lambda key, series: series.tick < oldest)

    # Deletion

    def forget_topic(self, topic: str) -> None:
        """Remove the series of a deleted topic."""
        self.puts.pop(topic, None)
        self.copies.pop(topic, None)
        _drop(self.gets, lambda key, series: key[0] == topic)
        _drop(self.latency, lambda key, series: key[1] == topic)
        _drop(self.send_backs, lambda key, series: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """Remove the series of a deleted group."""
        _drop(self.gets, lambda key, series: key[1] == group)
        _drop(self.latency, lambda key, series: key[2] == group)
        _drop(self.send_backs, lambda key, series: key[1] == group)

    # Queries

    def consume_tps(self, topic: str, group: str, now_ms: int) -> float:
        """Return the messages per second that a group received in the last minute."""
        series = self.gets.get((topic, group))
        return 0.0 if series is None else series.figures(MINUTE, self.advance(now_ms))[0].tps


def _drop(table: dict[K, Series], is_over: Callable[[K, Series], bool]) -> None:
    for key in [key for key, series in table.items() if is_over(key, series)]:
        del table[key]
