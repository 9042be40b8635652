"""Types of /api/v1/store: the readable part of the commit log, and pins that prevent its deletion."""

from typing import Annotated

import msgspec

from delaymq.api_types.base import Answer, Body, LeaseMs


class Segment(Answer):
    """A segment of the commit log."""

    name: str
    offset: int
    bytes: int


class FileSizes(Answer):
    """File sizes with which the store was opened."""

    commit_log_file_bytes: int
    consume_queue_file_bytes: int
    index_slots: int
    index_entries: int
    index_enabled: bool


class Versioned(Answer):
    """A response with the version of its format, which increases when a member changes its meaning or is removed."""

    format_version: int


class Store(Versioned):
    """Identity of the store, and the part of the log that may be read."""

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
    minimum_reader: int = 1
    """Lowest format version of programs that may interpret the log, as in state.json; brokers that do not state it have
    stores of version 1."""
    boot_id: str = ""
    """Id of the broker's start; empty for brokers that do not state it."""
    member: str = ""
    """Name of the member of a replicated group; empty without replicas."""


class Positions(Versioned):
    """Positions of consumers and the schedule, and bounds of the queues."""

    as_of_ms: int
    store_id: str
    in_use: bool
    start_offset: int
    end_offset: int
    log_end_offset: int
    """End of the log; only the part before `endOffset` may be read."""
    delay_offsets: dict[str, int]
    consumer_offsets: dict[str, dict[str, int]]
    deleted_topics: dict[str, int]
    queues: list[list[str | int]]
    """Rows of topic, queue id, first queue offset, next queue offset."""


class Files(Versioned):
    """Contents of the small files as they would be written now."""

    as_of_ms: int
    store_id: str
    log_end_offset: int
    files: dict[str, str]


class Starts(Answer):
    """Physical offsets at which records start."""

    as_of_ms: int
    every: int
    starts: list[int]


class PinBody(Body):
    """The part of the log to keep, and the duration."""

    holder: Annotated[str, msgspec.Meta(pattern="^backup-[A-Za-z0-9._-]{1,57}$")]
    offset: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    lease_ms: LeaseMs


class PinHeld(Answer):
    """A pin, valid until its lease ends."""

    holder: str
    offset: int
    lease_ends_ms: int
    store_id: str


class PinReleased(Answer):
    """A released pin."""

    holder: str
    released: bool
