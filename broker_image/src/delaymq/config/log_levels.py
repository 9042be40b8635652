"""`logLevel`: a level for all loggers, and levels of individual loggers: `info;delaymq.store=debug`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from delaymq.config.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")
MAX_LOGGERS = 32
"""Settable by clients (request code 25), and kept for the lifetime of the process."""
_LOGGER_NAME = re.compile(r"(delaymq|asyncio|aiohttp)(\.[a-z0-9_]{1,40}){0,5}")
"""Existing namespaces only, because `logging` keeps every requested name for ever."""


def parse_log_levels(text: str) -> tuple[str, dict[str, str]]:
    """Parse the level for all loggers, and the levels of individual ones; raise ConfigError if it is invalid."""
    level = "info"
    loggers: dict[str, str] = {}
    for number, word in enumerate(part.strip() for part in text.split(";")):
        name, equals, stated = (each.strip() for each in word.rpartition("="))
        if not word or (equals and not _LOGGER_NAME.fullmatch(name)):
            raise ConfigError(
                f"{word[:100]!r} does not name a logger: use a level, then LOGGER=LEVEL pairs,"
                " all separated by semicolons, such as info;delaymq.store=debug"
            )
        if stated.lower() not in LEVELS:
            raise ConfigError(f"{stated[:100]!r} is not a level: use one of {', '.join(LEVELS)}")
        if equals:
            loggers[name] = stated.lower()
        elif number == 0:
            level = stated.lower()
        else:
            raise ConfigError(f"{word[:100]!r} is a second level for all loggers: use LOGGER={stated[:100]}")
    if len(loggers) > MAX_LOGGERS:
        raise ConfigError(f"{len(loggers)} loggers are named: at most {MAX_LOGGERS} can have their own level")
    return level, loggers


def format_log_levels(level: str, loggers: Mapping[str, str]) -> str:
    """Return the text form, the inverse of `parse_log_levels`."""
    return ";".join([level, *(f"{name}={each}" for name, each in sorted(loggers.items()))])
