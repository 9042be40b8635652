"""Types of /api/v1/delay/pending."""

from typing import Literal

from delaymq.api_types.base import Answer
from delaymq.api_types.messages import MessageRow


class PendingRow(Answer, omit_defaults=True):
    """Pending messages of one level, topic, group, or range of due times; or the timed ones."""

    pending: int
    next_due_ms: int | None
    """None without pending messages, and by group."""
    level: int | None = None
    timed: bool = False
    """By level: whether the row counts timed messages, which have no level."""
    topic: str | None = None
    group: str | None = None
    paused: bool = False
    """By topic and by group: whether the topic or the group is paused."""
    from_ms: int | None = None
    to_ms: int | None = None


class Pending(Answer):
    """Counts of pending messages."""

    as_of_ms: int
    by: Literal["level", "topic", "group", "due"]
    rows: list[PendingRow]
    total: int
    complete: bool
    """False while the topics of some messages are unknown (after an upgrade); counts by topic are then incomplete."""
    truncated: bool
    """Whether there are more topics or groups than rows; `total` includes all."""
    bucket_ms: int | None = None


class PendingMessages(Answer):
    """A page of pending messages, in the order of due times."""

    as_of_ms: int
    messages: list[MessageRow]
    """Possibly fewer than `limit`, even if there are more."""
    total: int | None
    """Number of all pending messages that the filters select; null if only reading all of them would tell."""
    truncated: bool
    """Whether another page follows."""
    next: str | None
    """`after` of the next page; null at the end."""
    limit: int
    """Limit of the page: the requested one, or 100."""
    complete: bool
    """False while the topics of some messages are unknown (after an upgrade); results by topic are then incomplete."""
