"""Types of POST /api/v1/topics/{topic}/messages."""

from datetime import datetime
from itertools import combinations
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from delaymq.api_types.base import Answer, Body

MAX_KEYS: Final = 64
MAX_PROPERTIES: Final = 128
"""Maximum number of properties, as in RocketMQ 5."""
MAX_QUEUES: Final = 16_384
"""Maximum number of queues that a topic can have."""

_STORABLE: Final = {"pattern": r"^[^\x00-\x02]+$"}
"""Characters 0, 1 and 2 cannot be part of a property: the store separates names and values with 1 and 2."""
_BASE64: Final = {"pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"}
_SCHEDULES: Final = ("delayLevel", "delayMs", "deliverAt", "deliverAtMs", "cron", "everyMs")

Storable = Annotated[str, Meta(min_length=1, extra_json_schema=_STORABLE)]
PropertyName = Annotated[
    str, Meta(min_length=1, description="not one that brokers and clients set", extra_json_schema=_STORABLE)
]
Key = Annotated[str, Meta(min_length=1, extra_json_schema={"pattern": r"^[^\x00-\x02 ]+$"})]
DelayKey = Annotated[
    str,
    Meta(
        min_length=1,
        description="name of a pending message, at most 255 bytes, unique in its topic",
        extra_json_schema={"pattern": r"^([\x03-\x7f]{1,255}|[^\x00-\x02]{1,63})$"},
    ),
]
DelayGroup = Annotated[
    str,
    Meta(
        min_length=1,
        description="group of the message, at most 255 bytes: its pending messages can be changed together",
        extra_json_schema={"pattern": r"^([\x03-\x7f]{1,255}|[^\x00-\x02]{1,63})$"},
    ),
]
OnSameKey = Literal["replace", "keep", "refuse"]
Missed = Literal["latest", "all", "none"]
Ms = Annotated[int, Meta(ge=0, lt=1 << 53)]


class SendBody(Body):
    """A message to send, with exactly one of `body` and `body_base64`, and at most one schedule."""

    body: Annotated[str, Meta(description="body of the message, stored as UTF-8")] | UnsetType = UNSET
    body_base64: Annotated[bytes, Meta(extra_json_schema=_BASE64)] | UnsetType = UNSET
    tags: Annotated[Storable, Meta(description="a single tag, by which consumers can filter")] | UnsetType = UNSET
    keys: Annotated[list[Key], Meta(max_length=MAX_KEYS)] | UnsetType = UNSET
    properties: Annotated[dict[PropertyName, Storable], Meta(max_length=MAX_PROPERTIES)] | UnsetType = UNSET
    queue_id: (
        Annotated[int, Meta(ge=0, lt=MAX_QUEUES, description="if omitted, the broker chooses a queue")] | UnsetType
    ) = UNSET
    delay_level: Annotated[int, Meta(ge=1, lt=1 << 31)] | UnsetType = UNSET
    delay_ms: Annotated[Ms, Meta(description="delay from the arrival at the broker")] | UnsetType = UNSET
    deliver_at: (
        Annotated[datetime, Meta(tz=True, description="due time with an offset from UTC, such as +02:00 or Z")]
        | UnsetType
    ) = UNSET
    deliver_at_ms: Annotated[Ms, Meta(description="due time in ms since the epoch")] | UnsetType = UNSET
    delay_key: DelayKey | UnsetType = UNSET
    on_same_key: (
        Annotated[OnSameKey, Meta(description="treatment if a message with this key is pending (default: replace)")]
        | UnsetType
    ) = UNSET
    delay_group: DelayGroup | UnsetType = UNSET
    expire_ms: Annotated[Ms, Meta(description="lateness above which the message is dropped")] | UnsetType = UNSET
    cron: (
        Annotated[str, Meta(min_length=1, max_length=128, description="times of a repeating message, as 0 9 * * 1-5")]
        | UnsetType
    ) = UNSET
    zone: (
        Annotated[str, Meta(min_length=1, max_length=64, description="time zone of cron, as Europe/Berlin")] | UnsetType
    ) = UNSET
    every_ms: Annotated[int, Meta(ge=1_000, lt=1 << 49, description="interval of a repeating message")] | UnsetType = (
        UNSET
    )
    until_ms: (
        Annotated[int, Meta(ge=1, lt=1 << 49, description="time of the last run, in ms since the epoch")] | UnsetType
    ) = UNSET
    runs: Annotated[int, Meta(ge=1, lt=1 << 49, description="number of runs")] | UnsetType = UNSET
    missed: Annotated[Missed, Meta(description="treatment of missed runs (default: latest)")] | UnsetType = UNSET


DescribedSendBody = Annotated[
    SendBody,
    Meta(
        extra_json_schema={
            "oneOf": [{"required": ["body"]}, {"required": ["bodyBase64"]}],
            "not": {"anyOf": [{"required": list(pair)} for pair in combinations(_SCHEDULES, 2)]},
        }
    ),
]
"""`SendBody` with the combinations of members that are accepted, for the description."""


class Sent(Answer):
    """A stored message."""

    message_id: str
    """The unique id, which the broker assigned."""
    offset_message_id: str
    """Address of the stored record; for a delayed message, that of the pending record."""
    queue_id: int
    """Queue of the topic in which the message is or will be."""
    queue_offset: int
    """Offset of the stored record; for a delayed message, in the queue of pending messages."""
    due_ms: int | None
    """Due time of a message with a due time; None for all others, including those with a delay level."""
    recall_handle: str | None
    """Handle by which a message with a due time can be recalled; None for all others."""
    kept: bool
    """Whether nothing was stored because a message with the same key is pending; the other members describe it."""
