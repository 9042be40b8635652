"""Lateness of messages by real topic, for the metrics: a few buckets for a limited number of topics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 30_000, 300_000)


class LatenessCounts:
    """Histogram: 14 counts and a sum."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0

    def add(self, lateness_ms: int, messages: int = 1) -> None:
        """Count messages."""
        self.counts[bisect_left(BOUNDS_MS, lateness_ms)] += messages
        self.sum_ms += lateness_ms * messages

    def merge(self, other: LatenessCounts) -> None:
        """Add the counts of another histogram."""
        self.counts = [here + there for here, there in zip(self.counts, other.counts, strict=True)]
        self.sum_ms += other.sum_ms


class TopicLateness:
    """Histograms by label. `label` returns the label of a topic; the number of labels must be limited."""

    def __init__(self, label: Callable[[str], str]) -> None:
        self._label = label
        self._table: dict[str, LatenessCounts] = {}

    def add(self, topic: str, lateness_ms: int, messages: int = 1) -> None:
        """Count messages of a topic."""
        counts = self._table.get(topic)
        if counts is None:
            label = self._label(topic)
            counts = self._table.get(label)
            if counts is None:
                counts = self._table[label] = LatenessCounts()
        counts.add(lateness_ms, messages)

    def forget(self, topic: str, heir: str | None = None) -> None:
        """Remove the histogram of a deleted topic, or add it to that of `heir`."""
        counts = self._table.pop(topic, None)
        if counts is not None and heir is not None:
            self._table.setdefault(heir, LatenessCounts()).merge(counts)

    def copy(self) -> dict[str, LatenessCounts]:
        """Return a copy of the current histograms by label."""
        copied = {}
        for name, counts in self._table.items():
            copied[name] = LatenessCounts()
            copied[name].merge(counts)
        return copied
