"""Conversion of a delay (`5s`, a number of seconds, a timedelta) to the broker's delay level of exactly this
duration.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TypeAlias

from delaymq.client.errors import NoSuchDelayError
from delaymq.message.errors import LevelTableError
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels, delay_text, parse_delay_ms

Delay: TypeAlias = str | int | float | timedelta
"""A string such as `5s` or `1m`, a number of seconds, or a timedelta."""
TABLE_KEY = "messageDelayLevel"


def table_of(settings: Mapping[str, str]) -> DelayLevels:
    """Return the delay level table from a broker's settings. NoSuchDelayError if it is invalid."""
    try:
        return DelayLevels.parse(settings.get(TABLE_KEY, DEFAULT_LEVELS))
    except LevelTableError as error:
        raise NoSuchDelayError(f"the broker's delay level table is invalid: {error}") from error


def delay_in_ms(delay: object) -> int:
    """Return a `Delay` in milliseconds. NoSuchDelayError if it is invalid."""
    if isinstance(delay, str):
        try:
            return parse_delay_ms(delay)
        except LevelTableError as error:
            raise NoSuchDelayError(str(error)) from error
    length = delay
    if isinstance(delay, int | float) and not isinstance(delay, bool):
        try:
            length = timedelta(seconds=delay)
        except (OverflowError, ValueError) as error:  # too large, or not a number
            raise NoSuchDelayError(f"{delay!r} s is not a valid delay: {error}") from error
    if not isinstance(length, timedelta):
        raise NoSuchDelayError(
            f"{delay!r} is not a valid delay: use a string such as '5s', a number of seconds or a timedelta"
        )
    delay_ms, rest = divmod(length, timedelta(milliseconds=1))
    if delay_ms <= 0 or rest:
        raise NoSuchDelayError(
            f"{delay!r} is not a valid delay: it must be positive and a whole number of milliseconds"
        )
    return delay_ms


def level_for(delay: Delay, levels: DelayLevels, broker_name: str) -> int:
    """Return the lowest level with exactly this delay. NoSuchDelayError, which lists the broker's delays, if there
    is none.
    """
    wanted_ms = delay_in_ms(delay)
    try:
        return levels.delays_ms.index(wanted_ms) + 1
    except ValueError:
        known = " ".join(delay_text(each_ms) for each_ms in levels.delays_ms)
        shown = delay if isinstance(delay, str) else delay_text(wanted_ms)
        raise NoSuchDelayError(
            f"{broker_name} has no delay level of exactly {shown}; its levels are: {known}. Use one of these, or add "
            f"{shown} to the broker's {TABLE_KEY}."
        ) from None
