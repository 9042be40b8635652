"""Cardinality limit of metric labels: the first N active names keep series of their own until they are deleted."""

from __future__ import annotations

from typing import Final

OTHER: Final = "(other)"
"""Shared by all others; no topic and no group can be called so."""


class LabelLimiter:
    """A limited set; a monitor's series must not change hands, nor a sum under OTHER go back.

    So whoever is counted under OTHER stays there: room that a deleted name leaves is for names that come later.
    """

    __slots__ = ("_kept", "_limit", "_sharing")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[str, None] = {}
        self._sharing: set[str] = set()
        """Those under OTHER: they exist, so they are as many as topics or groups may be."""

    def __len__(self) -> int:
        return len(self._kept)

    def label(self, name: str) -> str:
        """The name itself when it has a series or gets one now, else OTHER."""
        if name in self._kept:
            return name
        if name == OTHER or name in self._sharing:
            return OTHER
        if len(self._kept) >= self._limit:
            self._sharing.add(name)
            return OTHER
        self._kept[name] = None
        return name

    def names(self) -> list[str]:
        """Those with a series of their own."""
        return list(self._kept)

    def forget(self, name: str) -> bool:
        """What was called so is gone; whether it was counted under OTHER."""
        self._kept.pop(name, None)
        if name not in self._sharing:
            return False
        self._sharing.remove(name)
        return True

    def set_limit(self, limit: int) -> None:
        """A changed configuration: with a lower limit the last ones lose theirs, with a higher one others get some."""
        if limit > self._limit:
            self._sharing.clear()
        self._limit = limit
        for name in list(self._kept)[limit:]:
            del self._kept[name]
