"""Schemas of answers that handlers build as plain dictionaries; a test compares them with real answers."""

from typing import Annotated, Any, Literal

import msgspec

from delaymq.broker.admin.drain import DrainMode
from delaymq.broker.delivery.hold import LONGEST_SPREAD_MS
from delaymq.config.log_levels import MAX_LOGGERS
from delaymq.server.api.broker import LEAST_LEASE_MS, LONGEST_LEASE_MS
from delaymq.server.api.routing import Answer, Body, Problem, Query
from delaymq.server.api.store.endpoints import MIN_EVERY_BYTES

SegmentName = Annotated[str, msgspec.Meta(max_length=64)]
HolderName = Annotated[str, msgspec.Meta(max_length=64)]


class Alive(Answer):
    """The loop runs."""

    alive: bool


class Ready(Answer):
    """Whether the broker is ready, and if not, why."""

    ready: bool
    not_ready: list[str]


class NotReady(Ready):
    """The same with the form of an error."""

    error: Problem


class Lateness(Answer):
    """How late messages came, ms."""

    p50_ms: int
    p99_ms: int
    max_ms: int


class DelayLevel(Answer):
    """One level: what waits, and the positions in its queue."""

    level: int
    delay_ms: int | None
    in_table: bool
    offset: int
    max_offset: int
    pending: int
    settled_above: int
    next_due_ms: int | None
    lateness: Lateness


class Delay(Answer):
    """The schedule."""

    as_of_ms: int
    levels: list[DelayLevel]
    corrected: list[dict[str, Any]]
    """Positions that the start corrected from the log."""
    held: dict[str, Any] | None
    """How deliveries are held back after a restore; None: they are not."""


class Held(Answer):
    """Deliveries as they are held back now."""

    as_of_ms: int
    overdue: int
    held: dict[str, Any] | None


class OffsetsForgotten(Answer):
    """Consumer offsets that could not be read were given up."""

    as_of_ms: int
    kept: list[str]
    """Files of what could not be read."""


class Drain(Answer):
    """Whether producers are held off."""

    mode: DrainMode
    since_ms: int
    lease_ends_ms: int | None
    last_send_ms: int | None
    sends: int


class Transactions(Answer):
    """Transactions; all but `pending` count since the start."""

    pending: int
    committed: int
    rolled_back: int
    checked: int
    """Questions to producers."""
    given_up: int


class About(Answer):
    """What the broker is and how it stands."""

    as_of_ms: int
    version: str
    broker_name: str
    cluster_name: str
    store_id: str
    boot_id: str
    started_at_ms: int
    ready: bool
    not_ready: list[str]
    address: str
    drain: Drain
    decommissioned: bool
    settings: dict[str, str]
    delay: Delay
    transactions: Transactions


class UnconsumedRow(Answer):
    """What one group has before it in one topic."""

    group: str
    topic: str
    messages: int


class Remaining(Answer):
    """What consumers would miss if this broker were gone."""

    as_of_ms: int
    pending_delays: int
    unconsumed: list[UnconsumedRow]
    unconsumed_messages: int
    active_groups: list[str]


class Decommissioned(Answer):
    """The broker takes no more writes."""

    decommissioned: bool
    pending_delays: int


class Segment(Answer):
    """A file of the log."""

    name: str
    offset: int
    bytes: int


class Store(Answer):
    """What of the log may be read."""

    format_version: int
    as_of_ms: int
    store_id: str
    broker_name: str
    in_use: bool
    message_delay_level: str
    file_reserved_time_hours: int
    files: dict[str, Any]
    """Sizes and kinds with which the store was opened."""
    start_offset: int
    end_offset: int
    segments: list[Segment]


class Positions(Answer):
    """How far consumers and the schedule are, and what the queues hold."""

    format_version: int
    as_of_ms: int
    store_id: str
    in_use: bool
    start_offset: int
    end_offset: int
    log_end_offset: int
    """`endOffset` is what may be read of it."""
    delay_offsets: dict[str, int]
    consumer_offsets: dict[str, dict[str, int]]
    deleted_topics: dict[str, int]
    queues: list[list[str | int]]
    """Rows of topic, queue, number of the first entry, number of the next one."""


class Files(Answer):
    """The small files as they would be written now."""

    format_version: int
    as_of_ms: int
    store_id: str
    log_end_offset: int
    files: dict[str, Any]


class SegmentQuery(Query):
    """Which segment."""

    name: SegmentName


class StartsQuery(Query):
    """Which segment, and how far the starts are apart."""

    name: SegmentName
    every: Annotated[int, msgspec.Meta(ge=MIN_EVERY_BYTES, le=10**18 - 1)]


class Starts(Answer):
    """Physical offsets at which records begin."""

    as_of_ms: int
    every: int
    starts: list[int]


class _Resume(Body, tag_field="overdue"):
    over_ms: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_SPREAD_MS)] | None = None
    up_to_ms: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] | None = None


class ResumeDeliver(_Resume, tag="deliver"):
    """What is overdue is delivered at once."""


class ResumeSpread(Body, tag="spread", tag_field="overdue"):
    """What is overdue is spread over a time."""

    over_ms: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_SPREAD_MS)]
    up_to_ms: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] | None = None


class ResumeDrop(Body, tag="drop", tag_field="overdue"):
    """What was due at or before a time is dropped."""

    up_to_ms: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
    over_ms: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_SPREAD_MS)] | None = None


Resume = ResumeDeliver | ResumeSpread | ResumeDrop

LeaseMs = Annotated[int, msgspec.Meta(ge=LEAST_LEASE_MS, le=LONGEST_LEASE_MS)]


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


LevelName = Literal["debug", "info", "warning", "error"]
LoggerName = Annotated[str, msgspec.Meta(pattern=r"^(delaymq|asyncio|aiohttp)(\.[a-z0-9_]{1,40}){0,5}$")]


class LogLevelBody(Body):
    """What shall be logged; both parts are replaced as a whole."""

    level: LevelName = "info"
    loggers: Annotated[dict[LoggerName, LevelName], msgspec.Meta(max_length=MAX_LOGGERS)] = msgspec.field(
        default_factory=dict
    )


class PinBody(Body):
    """Which part of the log is kept, and for how long."""

    holder: Annotated[str, msgspec.Meta(pattern="^backup-[A-Za-z0-9._-]{1,57}$")]
    offset: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    lease_ms: LeaseMs


class PinQuery(Query):
    """Whose pin."""

    holder: HolderName


class PinHeld(Answer):
    """A pin, until its lease ends."""

    holder: str
    offset: int
    lease_ends_ms: int
    store_id: str


class PinReleased(Answer):
    """A pin that has ended."""

    holder: str
    released: bool
