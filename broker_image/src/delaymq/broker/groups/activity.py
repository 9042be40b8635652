"""Which consumer groups are in use: when each was last heard of, by a heartbeat or a committed offset."""

from __future__ import annotations

from typing import Final

# A group that was not heard of for so long is taken to be abandoned. A day, so that a nightly job counts.
ACTIVE_MS: Final = 24 * 3_600_000
# Names that clients may make up; each is kept until it is too old.
MAX_GROUPS: Final = 200_000


class GroupActivity:
    """Kept in memory only: after a start every group counts as heard of at the start."""

    __slots__ = ("_boot_ms", "_seen_ms")

    def __init__(self, boot_ms: int) -> None:
        self._boot_ms = boot_ms
        self._seen_ms: dict[str, int] = {}
        """By group, the one that was silent longest first."""

    def note_activity(self, group: str, now_ms: int) -> None:
        """A sign of life of `group`."""
        if self._seen_ms.pop(group, None) is None and len(self._seen_ms) >= MAX_GROUPS:
            oldest = next(iter(self._seen_ms))
            if now_ms - self._seen_ms[oldest] < ACTIVE_MS:
                return
            del self._seen_ms[oldest]
        self._seen_ms[group] = now_ms

    def is_recent(self, group: str, now_ms: int) -> bool:
        """Whether `group` was heard of within ACTIVE_MS."""
        return now_ms - self._seen_ms.get(group, self._boot_ms) < ACTIVE_MS
