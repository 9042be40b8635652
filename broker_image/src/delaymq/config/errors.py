"""Errors of settings and their files."""

from __future__ import annotations

from collections.abc import Sequence

MAX_SHOWN_PROBLEMS = 10
"""A file that is no configuration at all has a problem in each line."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the text says which key, and what to write instead."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems: Sequence[str] = problems
        """Each as a sentence of its own; all that were found."""

    def __str__(self) -> str:
        shown = "; ".join(self.problems[:MAX_SHOWN_PROBLEMS])
        more = len(self.problems) - MAX_SHOWN_PROBLEMS
        return f"{shown}; and {more} more" if more > 0 else shown
