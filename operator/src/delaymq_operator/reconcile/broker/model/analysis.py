"""State of analytics in a pass, and memory between passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from delaymq_operator.api.analytics import AnalyticsGroupStatus, AnalyticsStatus
from delaymq_operator.api.conditions import ConditionStatus, Reason

GOING_ON: Final = frozenset({"Starting", "Submitted", "Running"})
"""States of a run, or of a group in it, that is in progress."""


@dataclass(frozen=True)
class Obstacle:
    """An obstacle to runs, or the cause of their end: a condition reason and a sentence."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Verdict:
    """The condition AnalyticsReady."""

    status: ConditionStatus
    reason: Reason
    message: str


@dataclass
class Analysis:
    """State of analytics in one pass."""

    status: AnalyticsStatus | None
    """Status written at the end of the pass; None without spec.analytics."""
    obstacle: Obstacle | None = None
    notes: list[str] = field(default_factory=list)
    """Deviations from the spec that do not prevent runs."""
    verdict: Verdict | None = None
    """None: the condition is unchanged, or removed if there is no status."""

    @property
    def known(self) -> AnalyticsStatus:
        """The status; analytics must be enabled."""
        if self.status is None:
            raise RuntimeError("there is no analytics status without spec.analytics")
        return self.status

    def change(self, **fields: object) -> None:
        """Change values of the status."""
        self.status = structs.replace(self.known, **fields)

    def entry(self, group: int) -> AnalyticsGroupStatus | None:
        """Return the status of a group."""
        return next((entry for entry in self.known.groups if entry.group == group), None)

    def put(self, entry: AnalyticsGroupStatus) -> None:
        """Set the status of a group."""
        others = [each for each in self.known.groups if each.group != entry.group]
        self.change(groups=tuple(sorted([*others, entry], key=lambda each: each.group)))

    def hinder(self, reason: Reason, message: str) -> None:
        """Record an obstacle; the first one is kept."""
        self.obstacle = self.obstacle or Obstacle(reason, message)


@dataclass
class AnalyticsMemory:
    """Memory that saves requests; a new operator queries again."""

    missing: bool = False
    """Whether the API server did not have the kind SparkApplication."""
    missing_ms: int = 0
    """Time of the last check."""
    cleaned_up: tuple[object, ...] | None = None
    """Run and limits for which the history was cleaned up."""
    failures: int = 0
    """Number of consecutive passes in which the API server rejected a request."""
    retry_ms: int = 0
    obstacle: Obstacle | None = None
    """Last obstacle, until the next attempt."""
