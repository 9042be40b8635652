"""/api/v1/messages."""

from typing import Literal

from delaymq.api_types.base import Answer


class MessageBody(Answer):
    """A body, or its beginning."""

    text: str | None
    """When it is UTF-8."""
    base64: str | None
    """When it is not."""
    bytes: int
    """Of the whole body: as it is shown if all of it is, else as it is stored."""
    truncated: bool
    not_unpacked: str | None
    """Why a body that the producer compressed is shown as it is stored."""


State = Literal["stored", "pending", "delivered", "retried", "deadLettered", "dropped"]


class MessageRow(Answer):
    """One message."""

    message_id: str
    """The unique id that its producer gave it; without one the offset message id."""
    offset_message_id: str
    topic: str
    """For a delayed one the topic that it is for."""
    queue_id: int
    queue_offset: int | None
    """None while it is delayed."""
    physical_offset: int
    tags: str | None
    keys: list[str]
    born_ms: int
    born_host: str
    stored_ms: int
    """Of the copy for a delayed one that was delivered."""
    delay_level: int
    due_ms: int | None
    state: State
    reconsume_times: int
    bytes: int
    """Of the stored body."""
    properties: dict[str, str]
    resent_ms: int | None
    """When a dead letter was last sent to its group again."""


class Messages(Answer):
    """What was found, the newest first."""

    as_of_ms: int
    messages: list[MessageRow]
    truncated: bool
    """Whether there are more."""
    pending: int | None
    """Delayed messages for the topic that still wait: only a search by key finds them. None: not counted yet."""


Event = Literal["stored", "due", "delivered", "consumed", "retried", "deadLettered", "dropped", "pending"]


class LifeEvent(Answer):
    """One thing that happened to a message."""

    event: Event
    at_ms: int | None
    """None where no record tells the time."""
    detail: str
    group: str | None = None


class MessageDetails(MessageRow):
    """One message."""

    as_of_ms: int
    body: MessageBody
    life: list[LifeEvent]
