"""Delay levels of brokers: their table, and the level of exactly a delay."""

from __future__ import annotations

from collections.abc import Mapping

from delaymq.client.errors import NoSuchDelayError
from delaymq.message.errors import LevelTableError
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels, delay_text

TABLE_KEY = "messageDelayLevel"


def table_of(settings: Mapping[str, str]) -> DelayLevels:
    """Return the delay level table from a broker's settings. NoSuchDelayError if it is invalid."""
    try:
        return DelayLevels.parse(settings.get(TABLE_KEY, DEFAULT_LEVELS))
    except LevelTableError as error:
        raise NoSuchDelayError(f"the broker's delay level table is invalid: {error}") from error


def level_for(delay_ms: int, levels: DelayLevels, broker_name: str) -> int:
    """Return the lowest level with exactly this delay. NoSuchDelayError, which lists the broker's delays, if there
    is none.
    """
    try:
        return levels.delays_ms.index(delay_ms) + 1
    except ValueError:
        known = " ".join(delay_text(each_ms) for each_ms in levels.delays_ms)
        shown = delay_text(delay_ms)
        raise NoSuchDelayError(
            f"{broker_name} does not support timed messages and has no delay level of exactly {shown}; its levels are: "
            f"{known}. Use one of these, or add {shown} to the broker's {TABLE_KEY}."
        ) from None
