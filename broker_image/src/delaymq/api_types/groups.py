"""Types of /api/v1/groups."""

from delaymq.api_types.base import Answer


class GroupBase(Answer):
    """Members shared by a row and the details of a group."""

    group: str
    model: str | None
    """None without members."""
    consume_type: str | None
    topics: list[str]
    lag: int
    """Unconsumed messages; 0 for broadcasting groups, whose members store the offsets."""
    dead_letters: int


class GroupRow(GroupBase):
    """One group."""

    members: int


class Groups(Answer):
    """A page of groups, sorted by name."""

    as_of_ms: int
    groups: list[GroupRow]
    total: int
    """Number of matching groups on all pages."""
    next: str | None


class Member(Answer):
    """One member; only the id is set while it is expected back after a broker restart."""

    client_id: str
    address: str | None
    language: str | None
    version: int | None


class Subscription(Answer):
    """A group's subscription to a topic."""

    topic: str
    expression: str
    type: str


class Progress(Answer):
    """Progress of a group in one queue."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    consumer_offset: int | None
    """The consumer offset; None: the group has committed none."""
    lag: int
    last_consumed_ms: int | None
    """Store time of the message before that offset."""


class GroupDetails(GroupBase):
    """One group with its members, subscriptions and progress."""

    as_of_ms: int
    members: list[Member]
    subscriptions: list[Subscription]
    progress: list[Progress]
    truncated: bool
    """Whether rows are omitted."""
