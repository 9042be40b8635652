"""/api/v1/groups."""

from delaymq.api_types.base import Answer


class GroupBase(Answer):
    """What a row and the details of a group share."""

    group: str
    model: str | None
    """Known while it has members."""
    consume_type: str | None
    topics: list[str]
    lag: int
    """Messages before it; 0 for broadcasting groups, which keep their offsets themselves."""
    dead_letters: int


class GroupRow(GroupBase):
    """One group."""

    members: int


class Groups(Answer):
    """A page of groups by name."""

    as_of_ms: int
    groups: list[GroupRow]
    total: int
    """Matching ones on all pages."""
    next: str | None


class Member(Answer):
    """One consumer; one that is expected back after a restart has an id only."""

    client_id: str
    address: str | None
    language: str | None
    version: int | None


class Subscription(Answer):
    """What a group wants of a topic."""

    topic: str
    expression: str
    type: str


class Progress(Answer):
    """How far a group is in one queue."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    consumer_offset: int | None
    """The next one that it consumes; None: it has committed none."""
    lag: int
    last_consumed_ms: int | None
    """When the message before that offset was stored."""


class GroupDetails(GroupBase):
    """One group with its members and its progress."""

    as_of_ms: int
    members: list[Member]
    subscriptions: list[Subscription]
    progress: list[Progress]
    truncated: bool
    """Whether there are more rows than shown."""
