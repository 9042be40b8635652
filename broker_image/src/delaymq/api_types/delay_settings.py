"""Types of /api/v1/delay/settings: limits, promises and other settings of delayed messages by topic and account."""

from typing import Annotated, Final, Literal

import msgspec

from delaymq.api_types.base import Answer, FrozenBody

MAX_NUMBER: Final = (1 << 53) - 1
"""Largest whole number that every JSON reader represents exactly."""
MAX_DELAY_S: Final = 315_360_000
"""Ten years: maximum of timerMaxDelaySec."""

MAX_WINDOW_MS: Final = 86_400_000
"""A day: maximum of spreadOverMs."""
MAX_OVERDUE_SPREAD_MS: Final = 30 * 86_400_000
"""Maximum of overMs."""

Limit = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
WhenTopicIsGone = Literal["recreate", "deadLetter", "drop"]
OverdueTreatment = Literal["deliver", "spread", "shift", "drop", "pause"]


class LatenessObjective(FrozenBody, frozen=True):
    """Service level objective of the lateness of deliveries."""

    within_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
    """Lateness in ms that a message should not exceed."""
    percent: Annotated[float, msgspec.Meta(gt=0, lt=100)]
    """Share of the messages for which this should hold, in percent."""


class Overdue(FrozenBody, frozen=True, omit_defaults=True):
    """Treatment of messages that came due while the broker was not running."""

    treatment: OverdueTreatment = "deliver"
    """`deliver`: immediately; `spread`: evenly over `overMs`; `shift`: each as late as the first of them; `drop`: not
    at all; `pause`: not until the topic is resumed."""
    after_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)] = 600_000
    """Shortest downtime in ms to which the treatment applies."""
    over_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_OVERDUE_SPREAD_MS)] | None = None
    """Duration of `spread` in ms. It is required for this treatment, and rejected for others."""

    def __post_init__(self) -> None:
        if self.treatment == "spread" and self.over_ms is None:
            raise ValueError("overdue: the treatment spread needs overMs, the time over which messages are delivered")
        if self.treatment != "spread" and self.over_ms is not None:
            raise ValueError(
                f"overdue: overMs belongs to the treatment spread, and the treatment is {self.treatment}: remove"
                " overMs, or use spread"
            )


class TopicDelaySettings(FrozenBody, frozen=True, omit_defaults=True):
    """Settings of one topic. A member that is null or absent has no effect."""

    max_delay_seconds: Annotated[int, msgspec.Meta(ge=1, le=MAX_DELAY_S)] | None = None
    """Longest delay of a message, in s."""
    max_pending_messages: Limit | None = None
    """Maximum number of pending messages, timed and with a delay level. 0: the topic accepts no delayed messages."""
    max_pending_bytes: Limit | None = None
    """Maximum bytes of the records of pending messages."""
    when_topic_is_gone: WhenTopicIsGone = "recreate"
    """Treatment of a message whose topic has been deleted when it is due."""
    lateness_objective: LatenessObjective | None = None
    """Share of the messages that should not be later than a given time."""
    max_per_second: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)] | None = None
    """Maximum number of messages that are delivered per second."""
    spread_over_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_WINDOW_MS)] | None = None
    """Time in ms over which messages that are due together are delivered evenly."""
    overdue: Overdue | None = None
    """Treatment of messages that came due while the broker was not running; null: they are delivered immediately."""


class AccountDelaySettings(FrozenBody, frozen=True, omit_defaults=True):
    """Settings of one account. They apply to the delayed messages that it sends."""

    max_pending_messages: Limit | None = None
    """Maximum number of pending messages, timed and with a delay level."""
    max_pending_bytes: Limit | None = None
    """Maximum bytes of their records."""


class OverdueInProgress(Answer):
    """Treatment of messages that came due during a downtime, which is in progress."""

    treatment: Literal["spread", "shift", "drop", "pause"]
    after_ms: int
    """Messages due after this time are treated."""
    up_to_ms: int
    """Messages due after this time are not."""
    until_ms: int | None
    """End of `spread` or `shift`. A shift delivers each message `untilMs` − `upToMs` after it is due."""


class TopicDelays(Answer):
    """Settings of a topic, and what is pending for it."""

    topic: str
    exists: bool
    """False: the topic has been deleted, and its settings remain for the messages that are pending."""
    settings: TopicDelaySettings
    pending: int
    pending_bytes: int
    next_due_ms: int | None = None
    """Null: nothing is pending."""
    latest_due_ms: int | None = None
    """Latest due time; it may be that of a message that has ended."""
    treatment: OverdueInProgress | None = None
    """Treatment after a downtime that is in progress."""


class AccountDelays(Answer):
    """Settings of an account, and its pending messages."""

    account: str
    settings: AccountDelaySettings
    pending: int
    pending_bytes: int


class DelaySettings(Answer):
    """A page of topics, sorted by name, and the accounts with settings."""

    as_of_ms: int
    topics: list[TopicDelays]
    total: int
    """Number of topics on all pages."""
    next: str | None
    accounts: list[AccountDelays]
    """On the first page only."""
