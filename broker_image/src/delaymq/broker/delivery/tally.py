"""Count of deliveries within a run of the hand-over, before they are added to statistics and histograms."""

from __future__ import annotations

from collections.abc import Iterator


class Tally:
    """Deliveries with equal topic, delay level and lateness are counted together: most of those in a run are."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int], list[int]] = {}

    def add(self, topic: str, level: int, lateness_ms: int, size: int) -> None:
        """Count a delivery whose record has `size` bytes."""
        key = topic, level, lateness_ms
        counts = self._counts.get(key)
        if counts is None:
            self._counts[key] = [1, size]
        else:
            counts[0] += 1
            counts[1] += size

    def take(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield topic, level, lateness in ms, number of messages and bytes of their records; then forget them."""
        for key, counts in self._counts.items():
            yield *key, counts[0], counts[1]
        self._counts.clear()
