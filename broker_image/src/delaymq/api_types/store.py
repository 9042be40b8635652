"""/api/v1/store: what of the log may be read, and pins that keep it from deletion."""

from typing import Annotated

import msgspec

from delaymq.api_types.base import Answer, Body, LeaseMs


class Segment(Answer):
    """A file of the log."""

    name: str
    offset: int
    bytes: int


class FileSizes(Answer):
    """Sizes and kinds with which the store was opened."""

    commit_log_file_bytes: int
    consume_queue_file_bytes: int
    index_slots: int
    index_entries: int
    index_enabled: bool


class Versioned(Answer):
    """A response that states the version of its form; it grows when a member changes its meaning or is removed."""

    format_version: int


class Store(Versioned):
    """What of the log may be read."""

    as_of_ms: int
    store_id: str
    broker_name: str
    in_use: bool
    message_delay_level: str
    file_reserved_time_hours: int
    files: FileSizes
    start_offset: int
    end_offset: int
    segments: list[Segment]


class Positions(Versioned):
    """How far consumers and the schedule are, and what the queues hold."""

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


class Files(Versioned):
    """The small files as they would be written now."""

    as_of_ms: int
    store_id: str
    log_end_offset: int
    files: dict[str, str]


class Starts(Answer):
    """Physical offsets at which records begin."""

    as_of_ms: int
    every: int
    starts: list[int]


class PinBody(Body):
    """Which part of the log is kept, and for how long."""

    holder: Annotated[str, msgspec.Meta(pattern="^backup-[A-Za-z0-9._-]{1,57}$")]
    offset: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    lease_ms: LeaseMs


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
