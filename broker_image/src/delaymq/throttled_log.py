"""Fields of log events, and throttled warnings for events that a peer can cause at will. Used by every layer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from delaymq.message import names

REPEAT_INTERVAL_MS = 60_000
"""At most one line per minute for each kind of event. Counters state how often it occurs."""
FIELDS_ATTRIBUTE = "delaymq_fields"
"""Attribute of a log record that holds its fields."""


def fields(**values: object) -> dict[str, dict[str, object]]:
    """Return the fields of an event for `extra`: unique id, keys, topic, group, peer. None values are omitted.

    Example: `logger.warning("…", extra=fields(topic=topic, peer=address))`.
    """
    return {FIELDS_ATTRIBUTE: {name: value for name, value in values.items() if value is not None}}


def about_message(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that identify a message."""
    return {"messageId": properties.get(names.UNIQUE_KEY), "keys": properties.get(names.KEYS)}


class ThrottledLogger:
    """Logger that writes the first line of each format, and then at most one in `interval_ms`.

    That line states how many lines were suppressed.
    """

    def __init__(
        self, logger: logging.Logger, now_ms: Callable[[], int], interval_ms: int = REPEAT_INTERVAL_MS
    ) -> None:
        self._logger = logger
        self._now_ms = now_ms
        self._interval_ms = interval_ms
        self._next_ms: dict[str, int] = {}
        self._suppressed: dict[str, int] = {}

    def warning(self, text: str, *args: object, error: BaseException | None = None, **about: object) -> None:
        """Log `text % args` as a warning. Formats are literals in the code, so their number is small."""
        self._log_throttled(logging.WARNING, text, args, error, about)

    def error(self, text: str, *args: object, **about: object) -> None:
        """Log as `warning` does, but as an error."""
        self._log_throttled(logging.ERROR, text, args, None, about)

    def _log_throttled(
        self, level: int, text: str, args: tuple[object, ...], error: BaseException | None, about: dict[str, object]
    ) -> None:
        now_ms = self._now_ms()
        next_ms = self._next_ms.get(text)
        # A clock that was set back must not suppress a warning for longer than usual.
        if next_ms is not None and now_ms < next_ms <= now_ms + self._interval_ms:
            self._suppressed[text] = self._suppressed.get(text, 0) + 1
            return
        self._next_ms[text] = now_ms + self._interval_ms
        left_out = self._suppressed.pop(text, 0)
        ending = f" ({left_out} more since the last time)" if left_out else ""
        self._logger.log(level, text + ending, *args, exc_info=error, extra=fields(**about))
