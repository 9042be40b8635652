"""/api/v1/delay: each level, and how deliveries are held back."""

from typing import Annotated, Final

import msgspec

from delaymq.api_types.base import Answer, Body, FrozenAnswer

MAX_SPREAD_MS: Final = 30 * 86_400_000

SpreadMs = Annotated[int, msgspec.Meta(ge=1, le=MAX_SPREAD_MS)]
DeliveryMode = Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["paused", "spread", "drop"]})]
"""Readers take the modes of newer brokers, too."""
UpToMs = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class Lateness(FrozenAnswer, frozen=True):
    """How late messages came, ms."""

    p50_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0


class DelayLevel(FrozenAnswer, frozen=True):
    """One level: what waits, and the positions in its queue."""

    level: int
    in_table: bool
    """False for a level that the table no longer has but whose queue still is served."""
    offset: int
    """The scheduler's position: all entries below it are handed over."""
    max_offset: int
    pending: int
    delay_ms: int | None = None
    """None for a level that the table no longer has."""
    settled_above: int = 0
    next_due_ms: int | None = None
    lateness: Lateness = Lateness()


class Correction(FrozenAnswer, frozen=True):
    """A position that the start corrected from the log."""

    level: int
    from_offset: int = msgspec.field(name="from")
    to_offset: int = msgspec.field(name="to")
    reason: str
    """`missing`, `stale`, `ahead`, `corrupt` or `out-of-range`."""


class DeliveryPolicy(FrozenAnswer, frozen=True):
    """How deliveries are held back."""

    mode: DeliveryMode
    since_ms: int
    overdue: int
    """Messages that are overdue now."""
    up_to_ms: int | None
    """What was due at or before it is overdue."""
    until_ms: int | None
    """When a `spread` ends."""
    left: int | None
    """Of a `spread`: messages that have yet to go out."""


class Delay(FrozenAnswer, frozen=True):
    """The schedule."""

    as_of_ms: int = 0
    levels: tuple[DelayLevel, ...] = ()
    corrected: tuple[Correction, ...] = ()
    """Positions that the start corrected from the log."""
    held: DeliveryPolicy | None = None
    """How deliveries are held back after a restore; None: they are not."""


class DeliveryState(Answer):
    """Deliveries as they are held back now."""

    as_of_ms: int
    overdue: int
    held: DeliveryPolicy | None


class ResumeDeliver(Body, tag="deliver", tag_field="overdue"):
    """What is overdue is delivered at once."""

    over_ms: SpreadMs | None = None
    up_to_ms: UpToMs | None = None


class ResumeSpread(Body, tag="spread", tag_field="overdue"):
    """What is overdue is spread over a time."""

    over_ms: SpreadMs
    up_to_ms: UpToMs | None = None


class ResumeDrop(Body, tag="drop", tag_field="overdue"):
    """What was due at or before a time is dropped."""

    up_to_ms: UpToMs
    over_ms: SpreadMs | None = None


Resume = ResumeDeliver | ResumeSpread | ResumeDrop
