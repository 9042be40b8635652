"""From a delay such as `5s` or a timedelta to the level that a broker has for exactly this delay."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from delaymq.client.errors import NoSuchDelayError
from delaymq.message.errors import LevelTableError
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels, delay_text, parse_delay_ms

TABLE_KEY = "messageDelayLevel"


def table_of(settings: Mapping[str, str]) -> DelayLevels:
    """The level table in a broker's settings; NoSuchDelayError when the broker has one that cannot be read."""
    try:
        return DelayLevels.parse(settings.get(TABLE_KEY, DEFAULT_LEVELS))
    except LevelTableError as error:
        raise NoSuchDelayError(f"the broker's table of delays cannot be read: {error}") from error


def delay_in_ms(delay: str | timedelta) -> int:
    """Milliseconds of `5s`, `1m` … or of a timedelta; NoSuchDelayError says what is wrong."""
    if isinstance(delay, timedelta):
        delay_ms, rest = divmod(delay, timedelta(milliseconds=1))
        if delay_ms <= 0 or rest:
            raise NoSuchDelayError(f"{delay!r} is no delay: it is more than 0 and has whole milliseconds")
        return delay_ms
    try:
        return parse_delay_ms(delay)
    except LevelTableError as error:
        raise NoSuchDelayError(str(error)) from error


def level_for(delay: str | timedelta, levels: DelayLevels, broker_name: str) -> int:
    """The lowest level with exactly this delay; NoSuchDelayError lists the broker's delays when there is none."""
    wanted_ms = delay_in_ms(delay)
    try:
        return levels.delays_ms.index(wanted_ms) + 1
    except ValueError:
        known = " ".join(delay_text(each_ms) for each_ms in levels.delays_ms)
        shown = delay if isinstance(delay, str) else delay_text(wanted_ms)
        raise NoSuchDelayError(
            f"{broker_name} has no delay of exactly {shown}; it has: {known}."
            f" Use one of these, or add {shown} to the broker's {TABLE_KEY}."
        ) from None
