"""Types of POST /api/v1/delay/changes."""

from datetime import datetime
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from delaymq.api_types.base import Answer, Body
from delaymq.api_types.sends import DelayGroup, DelayKey, Ms

Action = Literal["cancel", "move", "fire", "touch", "pause", "resume"]
_MESSAGES: Final = ("key", "id", "handle")
_TIMES: Final = ("delayMs", "deliverAt", "deliverAtMs")


def _one_of(names: tuple[str, ...]) -> dict[str, object]:
    return {"oneOf": [{"required": [name]} for name in names]}


def _none_of(names: tuple[str, ...]) -> dict[str, object]:
    return {"not": {"anyOf": [{"required": [name]} for name in names]}}


class ChangeBody(Body):
    """A change of a pending message, of the pending messages of a group, or a pause of a group or topic.

    Exactly one of `key`, `id`, `handle` and `group` is given; pauses take `group`, or nothing for the whole topic.
    """

    action: Annotated[Action, Meta(description="fire: deliver now; touch: restart the delay from now, of one message")]
    topic: Annotated[str, Meta(max_length=127)]
    key: DelayKey | UnsetType = UNSET
    id: Annotated[str, Meta(min_length=1, max_length=512, description="unique id")] | UnsetType = UNSET
    handle: Annotated[str, Meta(min_length=1, max_length=4096, description="recall handle")] | UnsetType = UNSET
    group: DelayGroup | UnsetType = UNSET
    delay_ms: Annotated[Ms, Meta(description="for move: new delay from now")] | UnsetType = UNSET
    deliver_at: (
        Annotated[datetime, Meta(tz=True, description="for move: new due time with an offset from UTC")] | UnsetType
    ) = UNSET
    deliver_at_ms: Annotated[Ms, Meta(description="for move: new due time in ms since the epoch")] | UnsetType = UNSET


DescribedChangeBody = Annotated[
    ChangeBody,
    Meta(
        extra_json_schema={
            "oneOf": [
                {
                    "properties": {"action": {"const": "move"}},
                    "allOf": [_one_of((*_MESSAGES, "group")), _one_of(_TIMES)],
                },
                {
                    "properties": {"action": {"enum": ["cancel", "fire"]}},
                    "allOf": [_one_of((*_MESSAGES, "group")), _none_of(_TIMES)],
                },
                {
                    "properties": {"action": {"const": "touch"}},
                    "allOf": [_one_of(_MESSAGES), _none_of((*_TIMES, "group"))],
                },
                {"properties": {"action": {"enum": ["pause", "resume"]}}, **_none_of((*_MESSAGES, *_TIMES))},
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
    """Number of changed messages: those of a group, more than 1 if a producer repeated its send, and 0 if the messages
    were cancelled before, as the request demands. For a pause or its end: number of pending messages to which it
    applies."""
    due_ms: int | None
    """New due time; None for `cancel`, `pause` and `resume`."""
