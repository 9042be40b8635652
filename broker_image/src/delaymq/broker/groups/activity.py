"""Activity of consumer groups: the time of each group's last heartbeat or offset commit."""

from __future__ import annotations

from typing import Final

ACTIVE_MS: Final = 24 * 3_600_000
"""A group is active for this time after its last heartbeat or commit. One day, so that nightly jobs count."""
MAX_GROUPS: Final = 200_000
"""Bounds the memory for group names, which clients may make up. Each is kept until it expires."""


class GroupActivity:
    """Times of last activity, in memory only. After a start, every group counts as active at the start."""

    __slots__ = ("_boot_ms", "_seen_ms")

    def __init__(self, boot_ms: int) -> None:
        self._boot_ms = boot_ms
        self._seen_ms: dict[str, int] = {}
        """By group, the least recently active one first."""

    def note_activity(self, group: str, now_ms: int) -> None:
        """Record activity of `group`."""
        if self._seen_ms.pop(group, None) is None and len(self._seen_ms) >= MAX_GROUPS:
            oldest = next(iter(self._seen_ms))
            if now_ms - self._seen_ms[oldest] < ACTIVE_MS:
                return
            del self._seen_ms[oldest]
        self._seen_ms[group] = now_ms

    def is_recent(self, group: str, now_ms: int) -> bool:
        """Return whether `group` was active within ACTIVE_MS."""
        return now_ms - self._seen_ms.get(group, self._boot_ms) < ACTIVE_MS
