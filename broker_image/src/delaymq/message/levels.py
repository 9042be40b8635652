"""Delay levels: the table `messageDelayLevel`, whose n-th entry is the delay of level n."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from delaymq.message.errors import LevelTableError

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Each level is a queue with files of its own; a typo must not create a million of them.
MAX_LEVELS = 1_000
# 10 years: beyond it a delay is a typo, and due times stay far inside 64 bits.
MAX_DELAY_MS = 10 * 365 * 86_400_000


def parse_delay_ms(text: str) -> int:
    """Milliseconds of `5s`, `1m`, `2h`, `7d`; LevelTableError says what is wrong."""
    unit = _UNIT_MS.get(text[-1:])
    number = text[:-1]
    if unit is None or not (number.isascii() and number.isdigit()):
        raise LevelTableError(f"{text[:40]!r} is not a delay: write a whole number and s, m, h or d, such as 30s")
    if len(number) > 12 or not 0 < int(number) * unit <= MAX_DELAY_MS:
        longest_days = MAX_DELAY_MS // 86_400_000
        raise LevelTableError(f"{text[:40]!r} is out of range: a delay is more than 0 and at most {longest_days}d")
    return int(number) * unit


def delay_text(delay_ms: int) -> str:
    """`90000` as `90s`, `120000` as `2m`: the longest unit that leaves a whole number."""
    for unit, unit_ms in reversed(_UNIT_MS.items()):
        if delay_ms >= unit_ms and delay_ms % unit_ms == 0:
            return f"{delay_ms // unit_ms}{unit}"
    return f"{delay_ms}ms"


@dataclass(frozen=True)
class DelayLevels:
    """An immutable level table; levels count from 1."""

    delays_ms: tuple[int, ...]
    """Delay of level n at index n - 1, in ms."""

    @classmethod
    def parse(cls, text: str = DEFAULT_LEVELS) -> DelayLevels:
        """A table from RocketMQ's `messageDelayLevel`; LevelTableError names the level that is wrong."""
        return cls.of(text.split())

    @classmethod
    def of(cls, words: Iterable[str]) -> DelayLevels:
        """A table from its levels in order."""
        delays = []
        for number, word in enumerate(words, 1):
            if number > MAX_LEVELS:
                raise LevelTableError(f"messageDelayLevel has more than {MAX_LEVELS} levels: use fewer")
            try:
                delays.append(parse_delay_ms(word))
            except LevelTableError as error:
                raise LevelTableError(f"messageDelayLevel, level {number}: {error}") from None
        if not delays:
            raise LevelTableError("messageDelayLevel is empty: name at least one level, such as 1s")
        return cls(tuple(delays))

    @property
    def max_level(self) -> int:
        """The highest level."""
        return len(self.delays_ms)

    def delay_ms(self, level: int) -> int:
        """The delay of `level` (1 or more); a level above the table's has the highest one's, as in RocketMQ."""
        return self.delays_ms[min(level, len(self.delays_ms)) - 1]

    def __contains__(self, level: int) -> bool:
        return 1 <= level <= len(self.delays_ms)


def level_of_queue(queue_id: int) -> int:
    """The level whose messages wait in queue `queue_id` of the schedule topic."""
    return queue_id + 1


def queue_of_level(level: int) -> int:
    """The queue of the schedule topic in which messages of `level` wait."""
    return level - 1
