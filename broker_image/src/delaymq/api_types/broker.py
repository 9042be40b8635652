"""The broker as a whole: probes, /api/v1/broker, drain, remaining, decommission and offsets."""

from typing import Literal

import msgspec

from delaymq.api_types.base import Answer, Body, FrozenAnswer, LeaseMs, Problem
from delaymq.api_types.delay import Delay

DrainMode = Literal["none", "withdraw", "refuse"]


class Alive(Answer):
    """The loop runs."""

    alive: bool


class NotAlive(Alive):
    """Only a restart helps."""

    error: Problem


class Ready(Answer):
    """Whether the broker is ready, and if not, why."""

    ready: bool
    not_ready: tuple[str, ...]


class NotReady(Ready):
    """The same with the form of an error."""

    error: Problem


class Drain(FrozenAnswer, frozen=True):
    """Whether producers are held off."""

    mode: DrainMode
    since_ms: int
    """When this mode began."""
    lease_ends_ms: int | None = None
    last_send_ms: int | None = None
    """When a client last sent a message; None: not since the start."""
    sends: int = 0
    """Messages that clients sent since the start."""


class NoDrain(Body, tag="none", tag_field="mode"):
    """Producers may come again."""

    lease_ms: LeaseMs | None = None


class Withdraw(Body, tag="withdraw", tag_field="mode"):
    """Routes say read-only until the lease ends."""

    lease_ms: LeaseMs


class Refuse(Body, tag="refuse", tag_field="mode"):
    """Sends are refused, too."""

    lease_ms: LeaseMs


DrainChange = NoDrain | Withdraw | Refuse


class Transactions(FrozenAnswer, frozen=True):
    """Transactions; all but `pending` count since the start."""

    pending: int = 0
    committed: int = 0
    rolled_back: int = 0
    checked: int = 0
    """Questions to producers."""
    given_up: int = 0


class About(FrozenAnswer, frozen=True):
    """What the broker is and how it stands."""

    as_of_ms: int
    version: str
    broker_name: str
    cluster_name: str
    store_id: str
    boot_id: str
    """Random for each start of the process."""
    started_at_ms: int
    ready: bool
    drain: Drain
    not_ready: tuple[str, ...] = ()
    """Sentences that say why it is not ready."""
    address: str = ""
    """ip:port that clients are told."""
    decommissioned: bool = False
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    """Every configuration key in force, but for secrets."""
    delay: Delay = Delay()
    transactions: Transactions = Transactions()


class UnconsumedRow(FrozenAnswer, frozen=True):
    """What one group has before it in one topic."""

    group: str
    topic: str
    messages: int


class Remaining(FrozenAnswer, frozen=True):
    """What consumers would miss if this broker were gone."""

    as_of_ms: int
    pending_delays: int
    unconsumed_messages: int
    unconsumed: tuple[UnconsumedRow, ...] = ()
    """The largest, at most 100."""
    active_groups: tuple[str, ...] = ()


class Decommissioned(Answer):
    """The broker takes no more writes."""

    decommissioned: bool
    pending_delays: int


class OffsetsForgotten(Answer):
    """Consumer offsets that could not be read were given up."""

    as_of_ms: int
    kept: tuple[str, ...]
    """Files of what could not be read."""
