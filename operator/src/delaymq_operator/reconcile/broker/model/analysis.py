"""What a pass knows of the analytics, and what is remembered between passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from delaymq_operator.api.analytics import AnalyticsGroupStatus, AnalyticsStatus
from delaymq_operator.api.conditions import ConditionStatus, Reason

GOING_ON: Final = frozenset({"Starting", "Submitted", "Running"})
"""States of a run, or of a group in it, that has not ended."""


@dataclass(frozen=True)
class Obstacle:
    """What keeps runs from being run, or ends them: a reason of the condition, and a sentence."""

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
    """The analytics in one pass."""

    status: AnalyticsStatus | None
    """Told at the end of the pass; None without spec.analytics."""
    obstacle: Obstacle | None = None
    notes: list[str] = field(default_factory=list)
    """What is not as the spec says, though runs go well."""
    verdict: Verdict | None = None
    """None: the condition stays as it is, or goes when there is no status."""

    @property
    def known(self) -> AnalyticsStatus:
        """The status of analytics that are wanted."""
        if self.status is None:
            raise RuntimeError("there is no analytics status without spec.analytics")
        return self.status

    def change(self, **fields: object) -> None:
        """Puts other values into the status."""
        self.status = structs.replace(self.known, **fields)

    def entry(self, group: int) -> AnalyticsGroupStatus | None:
        """What is told of a group."""
        return next((entry for entry in self.known.groups if entry.group == group), None)

    def put(self, entry: AnalyticsGroupStatus) -> None:
        """Tells this of a group."""
        others = [each for each in self.known.groups if each.group != entry.group]
        self.change(groups=tuple(sorted([*others, entry], key=lambda each: each.group)))

    def hinder(self, reason: Reason, message: str) -> None:
        """Something is in the way; what was said first counts."""
        self.obstacle = self.obstacle or Obstacle(reason, message)


@dataclass
class AnalyticsMemory:
    """Saves requests; a new operator asks again."""

    missing: bool = False
    """The API server knew no SparkApplications."""
    missing_ms: int = 0
    """When it was last asked."""
    cleaned_up: tuple[object, ...] | None = None
    """For which run and limits the history was looked through."""
    failures: int = 0
    """Passes, one after the other, in which the API server said no."""
    retry_ms: int = 0
    obstacle: Obstacle | None = None
    """What it said, until it is asked again."""
