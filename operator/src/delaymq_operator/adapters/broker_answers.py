"""What brokers' HTTP answers: as the wire has it, and as the port has it. Unknown fields come from newer brokers."""

from __future__ import annotations

from typing import Literal

import msgspec

from delaymq_operator.reconcile import ports


class _Wire(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Base of all answers."""


class _Lateness(_Wire, frozen=True):
    p50_ms: float = 0
    p99_ms: float = 0
    max_ms: float = 0


class _Level(_Wire, frozen=True):
    level: int
    in_table: bool
    offset: int
    max_offset: int
    pending: int
    delay_ms: int | None = None
    """None for a level that the table no longer has."""
    settled_above: int = 0
    next_due_ms: int | None = None
    lateness: _Lateness | None = None


class _Correction(msgspec.Struct, kw_only=True, frozen=True):
    level: int
    stated: int = msgspec.field(name="from")
    position: int = msgspec.field(name="to")
    reason: str


class _Delay(_Wire, frozen=True):
    levels: list[_Level] = []
    corrected: list[_Correction] = []


class Drain(_Wire, frozen=True):
    """POST /api/v1/drain."""

    mode: Literal["none", "withdraw", "refuse"] = "none"
    since_ms: int | None = None
    lease_ends_ms: int | None = None
    last_send_ms: int | None = None
    sends: int = 0

    def state(self) -> ports.DrainState:
        """As the port has it."""
        return ports.DrainState(**msgspec.structs.asdict(self))


class About(_Wire, frozen=True):
    """GET /api/v1/broker."""

    as_of_ms: int
    version: str
    broker_name: str
    cluster_name: str
    store_id: str
    boot_id: str
    started_at_ms: int
    ready: bool
    not_ready: list[str] = []
    address: str = ""
    drain: Drain = Drain()
    decommissioned: bool = False
    settings: dict[str, str] = {}
    delay: _Delay = _Delay()

    def info(self) -> ports.BrokerInfo:
        """As the port has it."""
        return ports.BrokerInfo(
            as_of_ms=self.as_of_ms,
            version=self.version,
            broker_name=self.broker_name,
            cluster_name=self.cluster_name,
            store_id=self.store_id,
            boot_id=self.boot_id,
            started_at_ms=self.started_at_ms,
            ready=self.ready,
            not_ready=tuple(self.not_ready),
            address=self.address,
            drain=self.drain.state(),
            decommissioned=self.decommissioned,
            settings=self.settings,
            levels=tuple(map(_level, self.delay.levels)),
            corrected=tuple(
                ports.Correction(level=one.level, from_offset=one.stated, to_offset=one.position, reason=one.reason)
                for one in self.delay.corrected
            ),
        )


class _Unconsumed(msgspec.Struct):
    group: str
    topic: str
    messages: int


class Remaining(_Wire, frozen=True):
    """GET /api/v1/remaining."""

    as_of_ms: int
    pending_delays: int
    unconsumed_messages: int
    unconsumed: list[_Unconsumed] = []
    active_groups: list[str] = []

    def remaining(self) -> ports.Remaining:
        """As the port has it."""
        return ports.Remaining(
            as_of_ms=self.as_of_ms,
            pending_delays=self.pending_delays,
            unconsumed_messages=self.unconsumed_messages,
            unconsumed=tuple(ports.Unconsumed(**msgspec.structs.asdict(one)) for one in self.unconsumed),
            active_groups=tuple(self.active_groups),
        )


class Refusal(msgspec.Struct):
    """The one form of errors: `{"error": {"code", "message"}}`."""

    class Error(msgspec.Struct):
        """What went wrong."""

        code: str
        message: str

    error: Error


def _level(level: _Level) -> ports.LevelState:
    late = level.lateness
    lateness = None if late is None else ports.Lateness(**msgspec.structs.asdict(late))
    return ports.LevelState(
        level=level.level,
        delay_ms=level.delay_ms or 0,
        in_table=level.in_table,
        offset=level.offset,
        max_offset=level.max_offset,
        pending=level.pending,
        settled_above=level.settled_above,
        next_due_ms=level.next_due_ms,
        lateness=lateness,
    )
