"""Types of GET /api/v1/delay/forecast."""

from delaymq.api_types.base import Answer


class DueRange(Answer):
    """Pending messages that are due within a range of time."""

    from_ms: int | None
    """Null for the first range, which includes overdue messages."""
    to_ms: int | None
    """End of the range, which does not belong to it; null for the last one."""
    pending: int


class TopicForecast(Answer):
    """Pending messages of a topic."""

    topic: str
    pending: int
    due: dict[str, int]
    """By the time until they are due: `1m` (including overdue ones), `10m`, `1h`, `1d`, `more`; each counts once."""


class Forecast(Answer):
    """Numbers of messages that will be due. All ranges begin and end at multiples of their width from now on."""

    as_of_ms: int
    pending: int
    """Number of all selected messages."""
    due: dict[str, int]
    """As for a topic."""
    hours: list[DueRange]
    """The next 24 hours, and all later messages."""
    days: list[DueRange]
    """The next 30 days, of 24 hours each, and all later messages."""
    topics: list[TopicForecast]
    """Topics with the most pending messages."""
    truncated: bool
    """Whether there are more topics; all other members include them."""
    complete: bool
    """False while the topics of some messages are unknown (after an upgrade); results by topic are then incomplete."""
