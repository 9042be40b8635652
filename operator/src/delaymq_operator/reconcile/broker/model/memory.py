"""Memory of a Broker's reconciliation between passes: an optimisation only, empty when the operator starts."""

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
    """Digest of the applied object."""
    seen_version: str
    """The resourceVersion of the object that differed; empty: there was none."""
    result: Manifest
    """The resulting object."""
    at_ms: int
    repeated: int = 0
    """Number of previous applies of the same object because it was changed back."""


@dataclass(frozen=True, kw_only=True)
class SeenOffsets:
    """A group's scheduler as last observed."""

    boot_id: str
    offsets: dict[int, int]
    """Offset by level."""


@dataclass(frozen=True, kw_only=True)
class LostVolume:
    """Whether the volume of a claim can be used again."""

    why: str
    """Why not; empty: it can, or this is unknown."""
    since_ms: int
    """Time since which `why` has not been empty; otherwise, that of the check."""
    checked_ms: int
    problem: str
    """Why the last check failed; empty: it did not."""


@dataclass(frozen=True, kw_only=True)
class LastWarning:
    """The newest Warning Event about an object."""

    reason: str
    message: str
    at_ms: int


@dataclass
class BrokerMemory:
    """Memory of a Broker; replaced when the name belongs to another object."""

    uid: str = ""
    token: str | None = None
    registrations: Registrations | None = None
    """Value as last written."""
    unsigned: tuple[int, ...] = ()
    """Groups whose pods did not sign at that time."""
    replication_secrets: dict[int, str] = field(default_factory=dict)
    """Secrets of groups with replicas, as last written."""
    checked_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    """(object, group) → time of the last check of objects that are not watched."""
    granted: dict[int, str] = field(default_factory=dict)
    """Digest of the permissions last applied for a group."""
    leftovers: dict[int, int] = field(default_factory=dict)
    """Group → successive checks that found no endpoints of a former selector."""
    masterless_since_ms: dict[int, int] = field(default_factory=dict)
    certified: str = ""
    """Digest of what the issued certificate was last checked against."""
    certified_ms: int = 0
    """Time of that check."""
    applied: dict[tuple[str, str], Applied] = field(default_factory=dict)
    seen: dict[int, SeenOffsets] = field(default_factory=dict)
    resumed: dict[int, ResumedStatus] = field(default_factory=dict)
    """Last reported start of each group, so that it is reported once even before the status contains it."""
    unreachable_since_ms: dict[int, int] = field(default_factory=dict)
    undrained_since_ms: dict[int, int] = field(default_factory=dict)
    """Time since which a group's broker, although it responds, does not follow drain requests."""
    growth_refused_ms: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    """(claim, size) → time and message of the API server's rejection."""
    lost_volumes: dict[str, LostVolume] = field(default_factory=dict)
    """uid of a claim whose broker does not run → the last check of its volume."""
    missing_since_ms: dict[str, int] = field(default_factory=dict)
    """Time since which a pod, by name, has been missing."""
    warnings: dict[str, tuple[int, LastWarning | None]] = field(default_factory=dict)
    """uid of an object → time when its Events were read, and the newest Warning."""
    events_ms: dict[tuple[str, str], int] = field(default_factory=dict)
    """(reason, message) → time of the last Event."""
    analytics: AnalyticsMemory = field(default_factory=AnalyticsMemory)
    status: dict[str, Any] | None = None
    """Value as last written."""
    stored: dict[str, Any] | None = None
    """The object as the API server stored it."""
    stored_version: str = ""
    """The Broker's resourceVersion at that time."""
    status_at_ms: int = 0
    seen_ms: int = 0
    """Time of the last pass."""

    def observe_clock(self, now_ms: int) -> None:
        """Reset times after the clock was set back, so that nothing waits until it catches up."""
        if now_ms < self.seen_ms:
            self.unreachable_since_ms.clear()
            self.undrained_since_ms.clear()
            self.growth_refused_ms.clear()
            self.lost_volumes.clear()
            self.missing_since_ms.clear()
            self.checked_ms.clear()
            self.masterless_since_ms.clear()
            self.warnings.clear()
            self.events_ms.clear()
            self.status_at_ms = 0
            self.certified_ms = 0
            self.analytics.retry_ms = self.analytics.missing_ms = 0
            self.applied = {what: replace(last, at_ms=now_ms) for what, last in self.applied.items()}
        self.seen_ms = now_ms
