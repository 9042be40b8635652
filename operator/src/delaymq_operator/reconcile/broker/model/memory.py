"""What the reconcile of a Broker remembers between passes: a help only, an operator that starts has none of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from delaymq_operator.api.broker_status import ResumedStatus
from delaymq_operator.manifests import Registrations
from delaymq_operator.reconcile.broker.model.analysis import AnalyticsMemory
from delaymq_operator.reconcile.ports import Manifest


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The last apply of an object."""

    digest: str
    """Of what was applied."""
    seen_version: str
    """resourceVersion of the object that was found to differ; empty: there was none."""
    result: Manifest
    """The object after it."""
    at_ms: int
    repeated: int = 0
    """How often the same was applied before, because somebody changed the object back."""


@dataclass(frozen=True, kw_only=True)
class SeenOffsets:
    """A group's scheduler when it was last seen."""

    boot_id: str
    offsets: dict[int, int]
    """Position by level."""


@dataclass(frozen=True, kw_only=True)
class LastWarning:
    """The newest Warning Event about an object."""

    reason: str
    message: str
    at_ms: int


@dataclass
class BrokerMemory:
    """By Broker; made anew when the name belongs to another object."""

    uid: str = ""
    token: str | None = None
    registrations: Registrations | None = None
    """As last written."""
    unsigned: tuple[int, ...] = ()
    """Groups whose pods did not sign then."""
    applied: dict[tuple[str, str], Applied] = field(default_factory=dict)
    seen: dict[int, SeenOffsets] = field(default_factory=dict)
    resumed: dict[int, ResumedStatus] = field(default_factory=dict)
    """What was said of each group's last start, so that it is said once even before the status shows it."""
    unreachable_since_ms: dict[int, int] = field(default_factory=dict)
    undrained_since_ms: dict[int, int] = field(default_factory=dict)
    """Since when a group's broker, though it answers, does not move writes away or take them again when asked."""
    growth_refused_ms: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    """(claim, size) → when the API server refused it, and its sentence."""
    missing_since_ms: dict[str, int] = field(default_factory=dict)
    """Since when a pod, by name, has not been there."""
    warnings: dict[str, tuple[int, LastWarning | None]] = field(default_factory=dict)
    """uid of an object → when its Events were read, and the newest Warning."""
    events_ms: dict[tuple[str, str], int] = field(default_factory=dict)
    """(reason, message) → when it was last said."""
    analytics: AnalyticsMemory = field(default_factory=AnalyticsMemory)
    status: dict[str, Any] | None = None
    """As last written."""
    stored: dict[str, Any] | None = None
    """The object as the API server stored it."""
    stored_version: str = ""
    """The Broker's resourceVersion then."""
    status_at_ms: int = 0
    seen_ms: int = 0
    """When the last pass was."""

    def observe_clock(self, now_ms: int) -> None:
        """After the clock was set back nothing waits until it is as late again."""
        if now_ms < self.seen_ms:
            self.unreachable_since_ms.clear()
            self.undrained_since_ms.clear()
            self.growth_refused_ms.clear()
            self.missing_since_ms.clear()
            self.warnings.clear()
            self.events_ms.clear()
            self.status_at_ms = 0
            self.analytics.retry_ms = self.analytics.missing_ms = 0
            self.applied = {what: replace(last, at_ms=now_ms) for what, last in self.applied.items()}
        self.seen_ms = now_ms
