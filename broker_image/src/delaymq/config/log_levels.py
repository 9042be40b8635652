"""`logLevel`: one level for all, and levels of single loggers, as `info;delaymq.store=debug`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from delaymq.config.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")
MAX_LOGGERS = 32
"""A peer may set these (code 25): each is kept for as long as the process lives."""
# Ours and those of what it is built on; a made-up name would be kept by `logging` for ever.
_LOGGER_NAME = re.compile(r"(delaymq|asyncio|aiohttp)(\.[a-z0-9_]{1,40}){0,5}")


def parse_log_levels(text: str) -> tuple[str, dict[str, str]]:
    """The level of all, and those of single loggers. ConfigError says what to write instead."""
    level = "info"
    loggers: dict[str, str] = {}
    for number, word in enumerate(part.strip() for part in text.split(";")):
        name, equals, stated = (each.strip() for each in word.rpartition("="))
        if not word or (equals and not _LOGGER_NAME.fullmatch(name)):
            raise ConfigError(
                f"{word[:100]!r} names no logger: write a level, then LOGGER=LEVEL joined by ;,"
                " such as info;delaymq.store=debug"
            )
        if stated.lower() not in LEVELS:
            raise ConfigError(f"{stated[:100]!r} is no level: write {', '.join(LEVELS)}")
        if equals:
            loggers[name] = stated.lower()
        elif number == 0:
            level = stated.lower()
        else:
            raise ConfigError(f"{word[:100]!r} is the second level for all: write LOGGER={stated[:100]}")
    if len(loggers) > MAX_LOGGERS:
        raise ConfigError(f"names {len(loggers)} loggers: at most {MAX_LOGGERS} have levels of their own")
    return level, loggers


def format_log_levels(level: str, loggers: Mapping[str, str]) -> str:
    """The text of which `parse_log_levels` makes these."""
    return ";".join([level, *(f"{name}={each}" for name, each in sorted(loggers.items()))])
