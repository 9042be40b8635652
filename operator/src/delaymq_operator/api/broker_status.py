"""Status of a Broker and of its groups. Times are RFC 3339 strings in UTC, durations ms."""

from __future__ import annotations

from typing import Literal

import msgspec

from delaymq_operator.api.analytics import AnalyticsStatus
from delaymq_operator.api.conditions import Condition
from delaymq_operator.api.resource import StatusStruct

DrainMode = Literal["none", "withdraw", "refuse"]
Verdict = Literal["Intact", "Corrected", "WentBack"]


class StorageStatus(StatusStruct, frozen=True, kw_only=True):
    """Volume of a group; sizes are quantities."""

    requested: str | None = None
    capacity: str | None = None
    """None while the volume does not exist."""


class VolumesStatus(StatusStruct, frozen=True, kw_only=True):
    """All bound volumes; the schema's rules derive from them which changes of spec.storage are permitted."""

    smallest: str
    """Smallest value to which spec.storage.size may be set back, a quantity."""
    storage_class_name: str | None = None
    """None if they differ."""


class LatenessStatus(StatusStruct, frozen=True, kw_only=True):
    """Delivery lateness of delayed messages, ms."""

    p50_ms: float = 0
    p99_ms: float = 0
    max_ms: float = 0


class LevelStatus(StatusStruct, frozen=True, kw_only=True):
    """Delay level of a group's broker."""

    level: int
    delay_ms: int | None = None
    """None if the table no longer contains the level."""
    offset: int = 0
    """Queue offset below which every message has been settled."""
    max_offset: int = 0
    pending: int = 0
    next_due: str | None = None


class TimedStatus(StatusStruct, frozen=True, kw_only=True):
    """Timed messages of a group's broker: those with any due time instead of a delay level."""

    pending: int = 0
    next_due: str | None = None


class CorrectedLevel(StatusStruct, frozen=True, kw_only=True):
    """A level whose delay offset differs from the one last observed by the operator, or found by the broker in its
    files.
    """

    level: int
    from_offset: int = msgspec.field(name="from")
    to_offset: int = msgspec.field(name="to")
    reason: str


class ResumedStatus(StatusStruct, frozen=True, kw_only=True):
    """Delivery state with which a broker resumed after its last start."""

    at: str
    """Time of the operator's check."""
    boot_id: str
    """Identity of the broker process; it changes with every start."""
    verdict: Verdict
    pending: int | None = None
    """Pending messages, timed ones included, at the time of the check; None if an earlier operator made it."""
    corrected: tuple[CorrectedLevel, ...] = ()


class ReplicaStatus(StatusStruct, frozen=True, kw_only=True):
    """A broker of a group with replicas; the master is one of them."""

    name: str
    """Its pod."""
    node: str | None = None
    in_sync: bool
    behind_bytes: int | None = None
    """Bytes of the master's log that it lacks; None if they are unknown."""
    behind_ms: int | None = None


class GroupStatus(StatusStruct, frozen=True, kw_only=True):
    """Status of a broker group."""

    name: str
    """Broker name in RocketMQ, such as demo-0."""
    group: int
    pod: str | None = None
    node: str | None = None
    ready: bool = False
    master: str | None = None
    """Pod of the master; None without replicas, and while there is no master."""
    epoch: int | None = None
    replicas: tuple[ReplicaStatus, ...] = ()
    address: str | None = None
    """Address that clients connect to, ip:port."""
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
    timed: TimedStatus | None = None
    """None for brokers that do not report timed messages."""
    resumed: ResumedStatus | None = None


class BrokerStatus(StatusStruct, frozen=True, kw_only=True):
    """Observed state."""

    observed_generation: int | None = None
    defaults: int | None = None
    """Version of the defaults for fields that the spec omits, fixed when the Broker was created."""
    size: int | None = None
    """Number of existing groups."""
    ready_groups: int | None = None
    selector: str | None = None
    """Label selector of the broker pods, for the scale subresource."""
    name_servers: tuple[str, ...] = ()
    """NameServer addresses for clients in the cluster, as host:port."""
    external_name_servers: tuple[str, ...] = ()
    """NameServer addresses for clients outside the cluster, as ip:port; empty without spec.external."""
    image: str | None = None
    """Image of the brokers; several images, separated by commas, during a rollout; None while none runs."""
    conditions: tuple[Condition, ...] = ()
    pending: int | None = None
    next_due: str | None = None
    levels: str | None = None
    """Delay level table in effect, as messageDelayLevel."""
    volumes: VolumesStatus | None = None
    """None while no volume is bound."""
    groups: tuple[GroupStatus, ...] = ()
    analytics: AnalyticsStatus | None = None
    """None without spec.analytics."""
