"""Types of /api/v1/delay: delay levels, timed messages, and pausing of deliveries."""

from typing import Annotated, Final

import msgspec

from delaymq.api_types.base import Answer, Body, FrozenAnswer

MAX_SPREAD_MS: Final = 30 * 86_400_000

SpreadMs = Annotated[int, msgspec.Meta(ge=1, le=MAX_SPREAD_MS)]
DeliveryMode = Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["paused", "spread", "drop"]})]
"""Readers also accept modes of newer brokers."""
UpToMs = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class Lateness(FrozenAnswer, frozen=True):
    """Delivery lateness, in ms."""

    p50_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0


class DelayLevel(FrozenAnswer, frozen=True):
    """One delay level: its pending messages, and the positions in its queue."""

    level: int
    in_table: bool
    """False for a level that was removed from the table but whose queue is still served."""
    offset: int
    """Position of the scheduler: all entries below it are delivered."""
    max_offset: int
    pending: int
    delay_ms: int | None = None
    """None for a level that was removed from the table."""
    settled_above: int = 0
    next_due_ms: int | None = None
    lateness: Lateness = Lateness()


class TimedIndex(FrozenAnswer, frozen=True):
    """Index of pending timed messages."""

    runs: int = 0
    """Sorted parts of the index, in memory and in files."""
    file_bytes: int = 0
    """Bytes of the files in use."""
    merging_entries: int = 0
    """Entries that are being merged into a larger run."""


class TimedCarrying(FrozenAnswer, frozen=True):
    """Pending timed messages that are stored again, so that expired segments can be deleted."""

    messages: int = 0
    """Messages that were carried since the start."""
    bytes: int = 0
    """Bytes of the records that were appended for this."""
    backlog: int = 0
    """Records in expired segments that still hold pending messages."""


class TimedMessages(FrozenAnswer, frozen=True):
    """Timed messages: those with any due time instead of a delay level."""

    pending: int = 0
    pending_bytes: int = 0
    """Bytes of their records."""
    next_due_ms: int | None = None
    delivered: int = 0
    """Messages delivered since the start."""
    lateness: Lateness = Lateness()
    index: TimedIndex = TimedIndex()
    carried: TimedCarrying = TimedCarrying()


class Correction(FrozenAnswer, frozen=True):
    """A position that was corrected from the log at startup."""

    level: int
    from_offset: int = msgspec.field(name="from")
    to_offset: int = msgspec.field(name="to")
    reason: str
    """`missing`, `stale`, `ahead`, `corrupt` or `out-of-range`."""


class DeliveryPolicy(FrozenAnswer, frozen=True):
    """State of paused, spread or dropped deliveries."""

    mode: DeliveryMode
    since_ms: int
    overdue: int
    """Number of messages that are overdue now."""
    up_to_ms: int | None
    """Messages due at or before this time are overdue."""
    until_ms: int | None
    """End of a `spread`."""
    left: int | None
    """Undelivered messages of a `spread`."""


class Paused(FrozenAnswer, frozen=True):
    """A pause of a topic, of a group of messages, or of all deliveries."""

    topic: str | None
    """None for all deliveries."""
    group: str | None
    """None for all groups of the topic."""
    since_ms: int
    by: str
    """Account that requested it; empty without access control, and for requests over HTTP."""
    pending: int
    """Number of pending messages to which it applies."""


class Delay(FrozenAnswer, frozen=True):
    """State of the schedule."""

    as_of_ms: int = 0
    levels: tuple[DelayLevel, ...] = ()
    corrected: tuple[Correction, ...] = ()
    """Positions that were corrected from the log at startup."""
    held: DeliveryPolicy | None = None
    """State of paused, spread or dropped deliveries; None: normal deliveries."""
    timed: TimedMessages | None = None
    """None: the broker is older than timed messages."""
    pauses: tuple[Paused, ...] = ()
    """Pauses that the log states, in the order of their beginning; at most 1,000. Older brokers have none."""
    pauses_truncated: bool = False
    """Whether there are more."""

    @property
    def parts(self) -> tuple[DelayLevel | TimedMessages, ...]:
        """All levels, and the timed messages if the broker knows them."""
        return self.levels if self.timed is None else (*self.levels, self.timed)


class DeliveryState(Answer):
    """State of deliveries after a pause or resume."""

    as_of_ms: int
    overdue: int
    held: DeliveryPolicy | None


class ResumeDeliver(Body, tag="deliver", tag_field="overdue"):
    """Deliver overdue messages immediately."""

    over_ms: SpreadMs | None = None
    up_to_ms: UpToMs | None = None


class ResumeSpread(Body, tag="spread", tag_field="overdue"):
    """Spread overdue messages over a time."""

    over_ms: SpreadMs
    up_to_ms: UpToMs | None = None


class ResumeDrop(Body, tag="drop", tag_field="overdue"):
    """Drop messages that were due at or before a time."""

    up_to_ms: UpToMs
    over_ms: SpreadMs | None = None


Resume = ResumeDeliver | ResumeSpread | ResumeDrop
