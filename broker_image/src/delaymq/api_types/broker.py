"""Types of the probes, /api/v1/broker, drain, remaining, decommission and offsets."""

from typing import Literal

import msgspec

from delaymq.api_types.base import Answer, Body, FrozenAnswer, LeaseMs, Problem
from delaymq.api_types.delay import Delay
from delaymq.api_types.replication import Replication

DrainMode = Literal["none", "withdraw", "refuse"]


class Alive(Answer):
    """Liveness: the event loop responds."""

    alive: bool


class NotAlive(Alive):
    """Not alive: only a restart helps."""

    error: Problem


class Ready(Answer):
    """Readiness, with the reasons if not ready."""

    ready: bool
    not_ready: tuple[str, ...]


class NotReady(Ready):
    """Not ready, with an error."""

    error: Problem


class Drain(FrozenAnswer, frozen=True):
    """State of draining, which keeps producers away."""

    mode: DrainMode
    since_ms: int
    """Time at which this mode started."""
    lease_ends_ms: int | None = None
    last_send_ms: int | None = None
    """Time of the last send by a client; None: none since startup."""
    sends: int = 0
    """Messages sent by clients since startup."""


class NoDrain(Body, tag="none", tag_field="mode"):
    """End draining."""

    lease_ms: LeaseMs | None = None


class Withdraw(Body, tag="withdraw", tag_field="mode"):
    """Advertise read-only routes until the lease ends."""

    lease_ms: LeaseMs


class Refuse(Body, tag="refuse", tag_field="mode"):
    """Also reject sends until the lease ends."""

    lease_ms: LeaseMs


DrainChange = NoDrain | Withdraw | Refuse


class Transactions(FrozenAnswer, frozen=True):
    """Transaction counters; all except `pending` count since startup."""

    pending: int = 0
    committed: int = 0
    rolled_back: int = 0
    checked: int = 0
    """Checks sent to producers."""
    given_up: int = 0


class About(FrozenAnswer, frozen=True):
    """Identity, state and settings of the broker."""

    as_of_ms: int
    version: str
    broker_name: str
    cluster_name: str
    store_id: str
    boot_id: str
    """Random id, different for each start of the process."""
    started_at_ms: int
    ready: bool
    drain: Drain
    not_ready: tuple[str, ...] = ()
    """Reasons why the broker is not ready, as sentences."""
    address: str = ""
    """Address advertised to clients, as ip:port."""
    decommissioned: bool = False
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    """Every effective configuration key, except secrets."""
    delay: Delay = Delay()
    transactions: Transactions = Transactions()
    replication: Replication | None = None
    """None without replicas."""


class UnconsumedRow(FrozenAnswer, frozen=True):
    """Unconsumed messages of one group in one topic."""

    group: str
    topic: str
    messages: int


class Remaining(FrozenAnswer, frozen=True):
    """Messages that consumers would lose without this broker."""

    as_of_ms: int
    pending_delays: int
    unconsumed_messages: int
    unconsumed: tuple[UnconsumedRow, ...] = ()
    """Largest rows, at most 100."""
    active_groups: tuple[str, ...] = ()


class Decommissioned(Answer):
    """State after decommissioning: the broker accepts no writes."""

    decommissioned: bool
    pending_delays: int


class OffsetsForgotten(Answer):
    """Result of discarding unreadable consumer offsets."""

    as_of_ms: int
    kept: tuple[str, ...]
    """Files that keep the unreadable offsets."""
