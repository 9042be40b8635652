"""Errors of settings and configuration files."""

from __future__ import annotations

from collections.abc import Sequence

MAX_SHOWN_PROBLEMS = 10
"""A file that is not a configuration has a problem in each line."""


class ConfigError(ValueError):
    """Invalid configuration; the text names the key and the valid values."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems: Sequence[str] = problems
        """All problems, one sentence each."""

    def __str__(self) -> str:
        shown = "; ".join(self.problems[:MAX_SHOWN_PROBLEMS])
        more = len(self.problems) - MAX_SHOWN_PROBLEMS
        return f"{shown}; and {more} more" if more > 0 else shown
