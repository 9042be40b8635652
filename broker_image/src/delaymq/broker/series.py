"""Names that have a series of their own in the metrics: the first so many that were active, and they keep it."""

from __future__ import annotations

from typing import Final

OTHER: Final = "(other)"
"""Shared by all others; no topic and no group can be called so."""


class SeriesNames:
    """A limited set that names only join; a monitor's series must not change hands."""

    __slots__ = ("_kept", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def label(self, name: str) -> str:
        """The name itself when it has a series or gets one now, else OTHER."""
        if name in self._kept:
            return name
        if len(self._kept) >= self._limit:
            return OTHER
        self._kept[name] = None
        return name

    def set_limit(self, limit: int) -> None:
        """A changed configuration: with a lower limit the last ones lose theirs."""
        self._limit = limit
        for name in list(self._kept)[limit:]:
            del self._kept[name]
