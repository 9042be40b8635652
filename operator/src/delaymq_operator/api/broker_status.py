"""The status of a Broker, in whole and by group. Times are RFC 3339 texts in UTC, durations ms."""

from __future__ import annotations

from typing import Literal

import msgspec

from delaymq_operator.api.analytics import AnalyticsStatus
from delaymq_operator.api.conditions import Condition
from delaymq_operator.api.resource import StatusStruct

DrainMode = Literal["none", "withdraw", "refuse"]
Verdict = Literal["Intact", "Corrected", "WentBack"]


class StorageStatus(StatusStruct, frozen=True, kw_only=True):
    """The volume of a group; sizes are quantities."""

    requested: str | None = None
    capacity: str | None = None
    """None while there is no volume."""


class VolumesStatus(StatusStruct, frozen=True, kw_only=True):
    """All bound volumes: the schema's rules derive from them what may change in spec.storage."""

    smallest: str
    """The smallest value to which spec.storage.size may be set back, a quantity."""
    storage_class_name: str | None = None
    """None when they differ."""


class LatenessStatus(StatusStruct, frozen=True, kw_only=True):
    """How late messages were handed over, ms."""

    p50_ms: float = 0
    p99_ms: float = 0
    max_ms: float = 0


class LevelStatus(StatusStruct, frozen=True, kw_only=True):
    """One delay level of a group's broker."""

    level: int
    delay_ms: int | None = None
    """None for a level that is no longer in the table but still has messages."""
    offset: int = 0
    """Everything below it is settled."""
    max_offset: int = 0
    pending: int = 0
    next_due: str | None = None


class CorrectedLevel(StatusStruct, frozen=True, kw_only=True):
    """A level whose delay offset was not what the operator last saw, or what the broker found in its files."""

    level: int
    from_offset: int = msgspec.field(name="from")
    to_offset: int = msgspec.field(name="to")
    reason: str


class ResumedStatus(StatusStruct, frozen=True, kw_only=True):
    """What a broker resumed with after its last start."""

    at: str
    """When the operator looked."""
    boot_id: str
    """Changes with every start of the broker's process."""
    verdict: Verdict
    corrected: tuple[CorrectedLevel, ...] = ()


class GroupStatus(StatusStruct, frozen=True, kw_only=True):
    """One broker group."""

    name: str
    """RocketMQ's broker name, such as demo-0."""
    group: int
    pod: str | None = None
    node: str | None = None
    ready: bool = False
    address: str | None = None
    """What clients are told: ip:port."""
    version: str | None = None
    started_at: str | None = None
    store_id: str | None = None
    writable: bool | None = None
    drain: DrainMode = "none"
    storage: StorageStatus | None = None
    pending: int | None = None
    next_due: str | None = None
    lateness: LatenessStatus | None = None
    delay: tuple[LevelStatus, ...] = ()
    resumed: ResumedStatus | None = None


class BrokerStatus(StatusStruct, frozen=True, kw_only=True):
    """What the operator tells."""

    observed_generation: int | None = None
    defaults: int | None = None
    """Which defaults count for what the spec does not say: those of the time when the Broker was made."""
    size: int | None = None
    """Groups that are made."""
    ready_groups: int | None = None
    selector: str | None = None
    """The label selector of the broker pods, for the scale subresource."""
    name_servers: tuple[str, ...] = ()
    """What clients in the cluster use: host:port each."""
    external_name_servers: tuple[str, ...] = ()
    """What clients outside use: ip:port each; empty without spec.external."""
    image: str | None = None
    """What the brokers run: several images, with commas, during a roll; None while none runs."""
    conditions: tuple[Condition, ...] = ()
    pending: int | None = None
    next_due: str | None = None
    levels: str | None = None
    """The level table in force, as messageDelayLevel."""
    volumes: VolumesStatus | None = None
    """None while no volume is bound."""
    groups: tuple[GroupStatus, ...] = ()
    analytics: AnalyticsStatus | None = None
    """None without spec.analytics."""
