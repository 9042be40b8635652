"""/api/v1/delay/pending."""

from typing import Literal

from delaymq.api_types.base import Answer
from delaymq.api_types.messages import MessageRow


class PendingRow(Answer, omit_defaults=True):
    """What waits at one level, for one topic, or until a time."""

    pending: int
    next_due_ms: int | None
    level: int | None = None
    topic: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None


class Pending(Answer):
    """What waits."""

    as_of_ms: int
    by: Literal["level", "topic", "due"]
    rows: list[PendingRow]
    total: int
    complete: bool
    """False: the topics of what waited at the start are still being read, and rows by topic count only the rest."""
    truncated: bool
    """Whether there are more topics than rows; `total` counts all."""
    bucket_ms: int | None = None


class NextMessages(Answer):
    """The messages that are due next, the first first."""

    as_of_ms: int
    messages: list[MessageRow]
    total: int
    """Number of all waiting messages of this level and topic."""
    truncated: bool
    """Whether more messages wait than the answer has."""
    limit: int
    """Limit of the answer: the requested one, or 64."""
    complete: bool
    """False: the topics of what waited at the start are still being read, and a topic has only what is known."""
