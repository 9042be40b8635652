"""Types of /api/v1/delay/pending."""

from typing import Literal

from delaymq.api_types.base import Answer
from delaymq.api_types.messages import MessageRow


class PendingRow(Answer, omit_defaults=True):
    """Pending messages of one level, one topic, or one range of due times; or the timed ones."""

    pending: int
    next_due_ms: int | None
    level: int | None = None
    timed: bool = False
    """By level: whether the row counts timed messages, which have no level."""
    topic: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None


class Pending(Answer):
    """Counts of pending messages."""

    as_of_ms: int
    by: Literal["level", "topic", "due"]
    rows: list[PendingRow]
    total: int
    complete: bool
    """False while the topics of some messages are unknown (after an upgrade); counts by topic are then incomplete."""
    truncated: bool
    """Whether there are more topics than rows; `total` includes all."""
    bucket_ms: int | None = None


class NextMessages(Answer):
    """The messages that are due next, sorted by due time."""

    as_of_ms: int
    messages: list[MessageRow]
    total: int
    """Number of all pending messages of this level, kind and topic."""
    truncated: bool
    """Whether more messages are pending than the response contains."""
    limit: int
    """Limit of the response: the requested one, or 64."""
    complete: bool
    """False while the topics of some messages are unknown (after an upgrade); results by topic are then incomplete."""
