"""Groups that read far behind the log's end for long, where they are to be stopped (consumer protection)."""

from __future__ import annotations

from typing import Final

# RocketMQ looks every 3 minutes; a group that catches up meanwhile goes on.
PATIENCE_MS: Final = 180_000
# Only places that are behind are kept; a hostile client's queues must not fill the memory.
MAX_PLACES: Final = 100_000

Place = tuple[str, str, int]
"""Group, topic, queue id."""


class SlowReaders:
    """Since when each place is far behind. Asked after pulls, and only where the protection is switched on."""

    __slots__ = ("_since_ms",)

    def __init__(self) -> None:
        self._since_ms: dict[Place, int] = {}

    def is_too_slow(self, place: Place, behind_bytes: int, threshold_bytes: int, now_ms: int) -> bool:
        """Whether a place that was read just now has been behind for too long; it begins anew then."""
        if behind_bytes <= threshold_bytes:
            self._since_ms.pop(place, None)
            return False
        since_ms = self._since_ms.get(place)
        # A clock that was set back begins anew as well.
        if since_ms is None or since_ms > now_ms:
            if len(self._since_ms) < MAX_PLACES:
                self._since_ms[place] = now_ms
            return False
        if now_ms - since_ms < PATIENCE_MS:
            return False
        del self._since_ms[place]
        return True
