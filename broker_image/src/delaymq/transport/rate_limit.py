"""Keeps a hostile peer from filling the log."""

import logging
from typing import Final

LINES_AN_INTERVAL: Final = 10
INTERVAL_S: Final = 10.0


class RateLimitedLog:
    """Writes at most LINES_AN_INTERVAL lines in INTERVAL_S seconds, and how many it left out."""

    def __init__(self, logger: logging.Logger, level: int = logging.WARNING) -> None:
        self._logger = logger
        self._level = level
        self._began = float("-inf")
        self._lines = 0
        self.left_out = 0

    def log(self, now: float, text: str, *arguments: object) -> None:
        """Writes the line, or counts it. `now` is any steady clock, in seconds."""
        if now - self._began >= INTERVAL_S:
            if self.left_out:
                self._logger.log(self._level, "%d similar lines were left out", self.left_out)
            self._began, self._lines, self.left_out = now, 0, 0
        if self._lines >= LINES_AN_INTERVAL:
            self.left_out += 1
            return
        self._lines += 1
        self._logger.log(self._level, text, *arguments)
