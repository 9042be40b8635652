"""Types of /api/v1/topics."""

from typing import Literal

from delaymq.api_types.base import Answer
from delaymq.api_types.delay_settings import OverdueInProgress, TopicDelaySettings

Kind = Literal["normal", "retry", "deadLetter", "system"]


class TopicRow(Answer):
    """One topic."""

    topic: str
    kind: Kind
    permission: Literal["", "r", "w", "rw"]
    read_queues: int
    write_queues: int
    messages: int
    """Readable messages."""
    stored: int
    """Messages stored for producers since startup."""
    delivered: int
    """Delayed messages delivered since startup."""
    pending: int | None
    """Pending delayed messages; None: not counted yet."""
    last_stored_ms: int | None


class Topics(Answer):
    """A page of topics, sorted by name."""

    as_of_ms: int
    topics: list[TopicRow]
    total: int
    """Number of matching topics on all pages."""
    next: str | None


class QueueRow(Answer):
    """One queue."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_stored_ms: int | None


class TopicDetails(TopicRow):
    """One topic with its queues, its delay settings, and the groups with offsets or members for it."""

    as_of_ms: int
    pending_bytes: int | None
    """Bytes of the records of pending delayed messages; None: not counted yet."""
    delay_settings: TopicDelaySettings
    delay_treatment: OverdueInProgress | None
    """Treatment of messages that came due during a downtime, which is in progress."""
    queues: list[QueueRow]
    groups: list[str]
