"""Types of /api/v1/deadletters."""

from typing import Annotated, Final

import msgspec

from delaymq.api_types.base import Answer, Body

MAX_RESENT: Final = 64
"""Maximum number of messages per request."""

OffsetMessageId = Annotated[str, msgspec.Meta(pattern="^([0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})$")]


class DeadLetter(Body):
    """A dead letter to resend."""

    offset_message_id: OffsetMessageId


class ResendBody(Body):
    """Dead letters to resend; those resent before are rejected unless `again` is true."""

    messages: Annotated[list[DeadLetter], msgspec.Meta(min_length=1, max_length=MAX_RESENT)]
    again: bool = False


class Resent(Answer):
    """A resent dead letter, with the id of the new message."""

    offset_message_id: str
    new_offset_message_id: str


class NotResent(Answer):
    """A dead letter that was not resent, with the reason."""

    offset_message_id: str
    code: str
    message: str


class Resends(Answer):
    """Result for each dead letter."""

    resent: list[Resent]
    failed: list[NotResent]
