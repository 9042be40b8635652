"""Groups that stay far behind the end of the log and are to be stopped (consumer protection)."""

from __future__ import annotations

from typing import Final

PATIENCE_MS: Final = 180_000
"""RocketMQ checks every 3 minutes. A group that catches up within this time is not stopped."""
MAX_PLACES: Final = 100_000
"""Bounds the memory, because clients choose the queues. Only positions that are far behind are kept."""

Place = tuple[str, str, int]
"""Group, topic, queue id."""


class SlowReaders:
    """Start of each position's lag. Checked after pulls, and only if consumer protection is enabled."""

    __slots__ = ("_since_ms",)

    def __init__(self) -> None:
        self._since_ms: dict[Place, int] = {}

    def is_too_slow(self, place: Place, behind_bytes: int, threshold_bytes: int, now_ms: int) -> bool:
        """Return whether a position that was just read has been behind for too long. Its time then starts again."""
        if behind_bytes <= threshold_bytes:
            self._since_ms.pop(place, None)
            return False
        since_ms = self._since_ms.get(place)
        # If the clock was set back, the time starts again.
        if since_ms is None or since_ms > now_ms:
            if len(self._since_ms) < MAX_PLACES:
                self._since_ms[place] = now_ms
            return False
        if now_ms - since_ms < PATIENCE_MS:
            return False
        del self._since_ms[place]
        return True
