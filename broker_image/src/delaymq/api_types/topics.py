"""/api/v1/topics."""

from typing import Literal

from delaymq.api_types.base import Answer

Kind = Literal["normal", "retry", "deadLetter", "system"]


class TopicRow(Answer):
    """One topic."""

    topic: str
    kind: Kind
    permission: Literal["", "r", "w", "rw"]
    read_queues: int
    write_queues: int
    messages: int
    """That can be read."""
    stored: int
    """By producers since the start."""
    delivered: int
    """Delayed ones since the start."""
    pending: int | None
    """Delayed ones that wait; None: not counted yet."""
    last_stored_ms: int | None


class Topics(Answer):
    """A page of topics by name."""

    as_of_ms: int
    topics: list[TopicRow]
    total: int
    """Matching ones on all pages."""
    next: str | None


class QueueRow(Answer):
    """One queue."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_stored_ms: int | None


class TopicDetails(TopicRow):
    """One topic with its queues, and groups that have offsets or members for it."""

    as_of_ms: int
    queues: list[QueueRow]
    groups: list[str]
