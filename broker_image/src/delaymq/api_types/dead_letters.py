"""/api/v1/deadletters."""

from typing import Annotated, Final

import msgspec

from delaymq.api_types.base import Answer, Body

MAX_RESENT: Final = 64
"""Messages of one request."""

OffsetMessageId = Annotated[str, msgspec.Meta(pattern="^([0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})$")]


class DeadLetter(Body):
    """One of them."""

    offset_message_id: OffsetMessageId


class ResendBody(Body):
    """Which dead letters; those sent again before are refused, unless `again` says otherwise."""

    messages: Annotated[list[DeadLetter], msgspec.Meta(min_length=1, max_length=MAX_RESENT)]
    again: bool = False


class Resent(Answer):
    """A dead letter that was sent again, and as what."""

    offset_message_id: str
    new_offset_message_id: str


class NotResent(Answer):
    """A dead letter that was not, and why."""

    offset_message_id: str
    code: str
    message: str


class Resends(Answer):
    """What became of each."""

    resent: list[Resent]
    failed: list[NotResent]
