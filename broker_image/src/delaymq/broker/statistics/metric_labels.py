"""Cardinality limit of metric labels: the first N active names keep their own series until they are deleted."""

from __future__ import annotations

from typing import Final

OTHER: Final = "(other)"
"""Label of all other names. No topic or group can have this name."""


class LabelLimiter:
    """Limited set of labels. A series must not move to another name, and the sum of OTHER must not decrease.

    A name that is counted under OTHER therefore stays there. The place of a deleted name goes to a later name.
    """

    __slots__ = ("_kept", "_limit", "_sharing")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[str, None] = {}
        self._sharing: set[str] = set()
        """Existing names under OTHER. Their number is bounded by that of topics or groups."""

    def __len__(self) -> int:
        return len(self._kept)

    def label(self, name: str) -> str:
        """Return the name itself if it has or gets its own series, otherwise OTHER."""
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
        """Return the names with their own series."""
        return list(self._kept)

    def forget(self, name: str) -> bool:
        """Remove a deleted name. Returns whether it was counted under OTHER."""
        self._kept.pop(name, None)
        if name not in self._sharing:
            return False
        self._sharing.remove(name)
        return True

    def set_limit(self, limit: int) -> None:
        """Apply a changed limit. A lower one removes the last names' series, a higher one gives series to others."""
        if limit > self._limit:
            self._sharing.clear()
        self._limit = limit
        for name in list(self._kept)[limit:]:
            del self._kept[name]
