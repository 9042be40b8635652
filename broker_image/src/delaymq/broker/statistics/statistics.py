"""The series of all keys, and RocketMQ's names for them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, TypeVar

from delaymq.broker.statistics.series import DAY, MINUTE, TICK_MS, Series

# Topics, groups in topics, and queues of groups that are counted one by one: clients make up names, and each costs
# 1 KB once it was used for longer than a tick.
MAX_KEYS: Final = 20_000
_IDLE_TICKS: Final = DAY.ticks * DAY.marks

K = TypeVar("K", bound=Hashable)
GroupKey = tuple[str, str]
"""Topic and group."""
QueueKey = tuple[int, str, str]
"""Queue, topic and group."""


class Statistics:
    """Everything by key. Times are those of the wall clock, in ms; `advance` has to be called each second."""

    def __init__(self, now_ms: int) -> None:
        self.tick = 0
        """Of the series, counted from the start."""
        self.puts: dict[str, Series] = {}
        """What producers and consumers that sent back had stored under a topic."""
        self.copies: dict[str, Series] = {}
        """What the scheduler, or the end of a transaction, stored under its real topic."""
        self.queue_puts: dict[int, Series] = {}
        """Delayed messages by queue of the schedule topic."""
        self.gets: dict[GroupKey, Series] = {}
        """What groups were handed."""
        self.latency: dict[QueueKey, Series] = {}
        """Milliseconds that reading for a group took."""
        self.queue_gets: dict[int, Series] = {}
        """Delayed messages that were handed over, by queue of the schedule topic."""
        self.send_backs: dict[GroupKey, Series] = {}
        self.broker_puts = Series(0)
        self.broker_gets = Series(0)
        self._elapsed_ms = 0
        self._advanced_ms = now_ms
        self._swept_tick = 0
        self._unlisted = Series(0)

    def advance(self, now_ms: int) -> int:
        """Takes the time; the ms since the start. A clock that is set back stands still for a moment."""
        self._elapsed_ms += max(now_ms - self._advanced_ms, 0)
        self._advanced_ms = now_ms
        self.tick = self._elapsed_ms // TICK_MS
        return self._elapsed_ms

    # Counting. What producers and consumers do all the time is written out in broker.stats.

    def series(self, table: dict[K, Series], key: K) -> Series:
        """The series of a key, ready to be added to; one that nobody sees when there are too many keys."""
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

    def add(self, table: dict[K, Series], key: K, size: int = 0, messages: int = 1) -> None:
        """Counts messages of `size` bytes together."""
        series = table.get(key)
        if series is None or series.tick != self.tick:
            series = self.series(table, key)
        series.messages += messages
        series.bytes += size
        series.times += 1

    def set_totals(self, series: Series, messages: int) -> None:
        """For what is counted elsewhere: looked at each second, that is close enough to when it came."""
        if series.tick != self.tick:
            series.advance(self.tick)
        series.messages = messages

    def _sweep(self) -> None:
        # Once a tick: while all of them are in use, looking again would find nothing.
        if self._swept_tick == self.tick:
            return
        self._swept_tick = self.tick
        oldest = self.tick - _IDLE_TICKS
        _drop(self.puts, lambda key, series: series.tick < oldest)
        _drop(self.copies, lambda key, series: series.tick < oldest)
        _drop(self.gets, lambda key, series: series.tick < oldest)
        _drop(self.latency, lambda key, series: series.tick < oldest)
        _drop(self.send_backs, lambda key, series: series.tick < oldest)

    # Names that end

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self.puts.pop(topic, None)
        self.copies.pop(topic, None)
        _drop(self.gets, lambda key, series: key[0] == topic)
        _drop(self.latency, lambda key, series: key[1] == topic)
        _drop(self.send_backs, lambda key, series: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """The group was deleted."""
        _drop(self.gets, lambda key, series: key[1] == group)
        _drop(self.latency, lambda key, series: key[2] == group)
        _drop(self.send_backs, lambda key, series: key[1] == group)

    # Questions

    def consume_tps(self, topic: str, group: str, now_ms: int) -> float:
        """Messages a second that a group was handed in the last minute."""
        series = self.gets.get((topic, group))
        return 0.0 if series is None else series.figures(MINUTE, self.advance(now_ms))[0].tps


def _drop(table: dict[K, Series], is_over: Callable[[K, Series], bool]) -> None:
    for key in [key for key, series in table.items() if is_over(key, series)]:
        del table[key]
