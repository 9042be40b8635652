"""Types of POST /api/v1/delay/changes."""

from datetime import datetime
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from delaymq.api_types.base import Answer, Body
from delaymq.api_types.sends import DelayKey, Ms

Action = Literal["cancel", "move", "fire", "touch"]
_NAMES: Final = ("key", "id", "handle")
_TIMES: Final = ("delayMs", "deliverAt", "deliverAtMs")


class ChangeBody(Body):
    """A change of a pending message, which is named by exactly one of `key`, `id` and `handle`."""

    action: Annotated[Action, Meta(description="fire: deliver now; touch: restart the delay from now")]
    topic: Annotated[str, Meta(max_length=127)]
    key: DelayKey | UnsetType = UNSET
    id: Annotated[str, Meta(min_length=1, max_length=512, description="unique id")] | UnsetType = UNSET
    handle: Annotated[str, Meta(min_length=1, max_length=4096, description="recall handle")] | UnsetType = UNSET
    delay_ms: Annotated[Ms, Meta(description="for move: new delay from now")] | UnsetType = UNSET
    deliver_at: (
        Annotated[datetime, Meta(tz=True, description="for move: new due time with an offset from UTC")] | UnsetType
    ) = UNSET
    deliver_at_ms: Annotated[Ms, Meta(description="for move: new due time in ms since the epoch")] | UnsetType = UNSET


DescribedChangeBody = Annotated[
    ChangeBody,
    Meta(
        extra_json_schema={
            "allOf": [
                {"oneOf": [{"required": [name]} for name in _NAMES]},
                {
                    "oneOf": [
                        {
                            "properties": {"action": {"const": "move"}},
                            "oneOf": [{"required": [name]} for name in _TIMES],
                        },
                        {
                            "properties": {"action": {"enum": ["cancel", "fire", "touch"]}},
                            "not": {"anyOf": [{"required": [name]} for name in _TIMES]},
                        },
                    ]
                },
            ]
        }
    ),
]
"""`ChangeBody` with the combinations of members that are accepted, for the description."""


class Change(Answer):
    """A change that was made."""

    action: Action
    topic: str
    changed: int
    """Number of changed messages: more than 1 if a producer repeated its send, and 0 if the message was cancelled
    before, as the request demands."""
    due_ms: int | None
    """New due time; None for `cancel`."""
