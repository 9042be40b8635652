"""Types of /api/v1/messages."""

from typing import Literal

from delaymq.api_types.base import Answer


class MessageBody(Answer):
    """A message body, or its beginning."""

    text: str | None
    """The body if it is UTF-8."""
    base64: str | None
    """The body if it is not UTF-8."""
    bytes: int
    """Size of the complete body: decompressed if it is shown completely, otherwise as stored."""
    truncated: bool
    not_unpacked: str | None
    """Reason why a compressed body is shown as stored."""


State = Literal["stored", "pending", "delivered", "retried", "deadLettered", "dropped", "cancelled", "expired"]


class Repeats(Answer):
    """Schedule of a repeating message."""

    cron: str | None
    """Cron expression; None if the message repeats at an interval."""
    zone: str | None
    """Time zone of the cron expression."""
    every_ms: int | None
    """Interval."""
    until_ms: int | None
    """Time after which the schedule has no run."""
    runs: int | None
    """Maximum number of runs."""
    missed: str
    """Treatment of missed runs: `latest`, `all` or `none`."""
    run: int | None
    """Number of the last run, 0 before the first one; None if the key index cannot tell."""
    last_run_ms: int | None
    """Time of that run, if the log still contains its copy."""


class MessageRow(Answer):
    """One message."""

    message_id: str
    """The unique id; for a message without one, the offset message id."""
    offset_message_id: str
    topic: str
    """The real topic for delayed messages."""
    queue_id: int
    queue_offset: int | None
    """None for delayed messages."""
    physical_offset: int
    tags: str | None
    keys: list[str]
    born_ms: int
    born_host: str
    stored_ms: int
    """For a delivered delayed message, the store time of the delivered copy."""
    delay_level: int
    due_ms: int | None
    state: State
    reconsume_times: int
    bytes: int
    """Size of the stored body."""
    properties: dict[str, str]
    group: str | None
    """Group of delayed messages (DELAY_GROUP); None without one."""
    resent_ms: int | None
    """Time at which a dead letter was last resent to its group."""
    repeats: Repeats | None
    """Schedule of a repeating message, whose `due_ms` is the time of the next run; None for all others."""


class Messages(Answer):
    """Search results, newest first."""

    as_of_ms: int
    messages: list[MessageRow]
    truncated: bool
    """Whether there are more results."""
    pending: int | None
    """Pending delayed messages of the topic, found only by a search by key. None: not counted yet."""


Event = Literal[
    "stored", "due", "delivered", "consumed", "retried", "deadLettered", "dropped", "pending", "moved", "fired",
    "cancelled", "expired",
]  # fmt: skip


class LifeEvent(Answer):
    """One event in the history of a message."""

    event: Event
    at_ms: int | None
    """None if no record contains the time."""
    detail: str
    group: str | None = None


class MessageDetails(MessageRow):
    """One message with its body and its history."""

    as_of_ms: int
    body: MessageBody
    life: list[LifeEvent]
