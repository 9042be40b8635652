"""Delay levels: the table `messageDelayLevel`, whose n-th entry is the delay of level n."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from delaymq.message.errors import LevelTableError

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
MAX_LEVELS = 1_000
"""Each level has its own queue files; a typo must not create a million of them."""
MAX_DELAY_MS = 10 * 365 * 86_400_000
"""10 years: a longer delay is a typo. Due times stay well within 64 bits."""


def parse_delay_ms(text: str) -> int:
    """Return a delay such as `5s`, `1m`, `2h` or `7d` in ms. LevelTableError."""
    unit = _UNIT_MS.get(text[-1:])
    number = text[:-1]
    if unit is None or not (number.isascii() and number.isdigit()):
        raise LevelTableError(f"{text[:40]!r} is not a delay: use a whole number and s, m, h or d, such as 30s")
    if len(number) > 12 or not 0 < int(number) * unit <= MAX_DELAY_MS:
        longest_days = MAX_DELAY_MS // 86_400_000
        raise LevelTableError(f"{text[:40]!r} is out of range: a delay must be more than 0 and at most {longest_days}d")
    return int(number) * unit


def delay_text(delay_ms: int) -> str:
    """Format a delay in the longest unit that yields a whole number: 90000 as `90s`, 120000 as `2m`."""
    for unit, unit_ms in reversed(_UNIT_MS.items()):
        if delay_ms >= unit_ms and delay_ms % unit_ms == 0:
            return f"{delay_ms // unit_ms}{unit}"
    return f"{delay_ms}ms"


@dataclass(frozen=True)
class DelayLevels:
    """An immutable delay level table; levels count from 1."""

    delays_ms: tuple[int, ...]
    """Delay of level n at index n - 1, in ms."""

    @classmethod
    def parse(cls, text: str = DEFAULT_LEVELS) -> DelayLevels:
        """Parse RocketMQ's `messageDelayLevel`. LevelTableError, which names the invalid level."""
        return cls.of(text.split())

    @classmethod
    def of(cls, words: Iterable[str]) -> DelayLevels:
        """Build a table from its levels in order. LevelTableError."""
        delays = []
        for number, word in enumerate(words, 1):
            if number > MAX_LEVELS:
                raise LevelTableError(f"the table has more than {MAX_LEVELS} levels: use fewer")
            try:
                delays.append(parse_delay_ms(word))
            except LevelTableError as error:
                raise LevelTableError(f"level {number}: {error}") from None
        if not delays:
            raise LevelTableError("the table is empty: specify at least one level, such as 1s")
        return cls(tuple(delays))

    @property
    def max_level(self) -> int:
        """Highest level."""
        return len(self.delays_ms)

    def delay_ms(self, level: int) -> int:
        """Return the delay of `level` (1 or more) in ms; a level above the highest has its delay, as in RocketMQ."""
        return self.delays_ms[min(level, len(self.delays_ms)) - 1]

    def __contains__(self, level: int) -> bool:
        return 1 <= level <= len(self.delays_ms)


def level_of_queue(queue_id: int) -> int:
    """Return the delay level of queue `queue_id` of the schedule topic."""
    return queue_id + 1


def queue_of_level(level: int) -> int:
    """Return the queue of the schedule topic for messages of `level`."""
    return level - 1
