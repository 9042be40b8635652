"""Errors of the broker, and rejections that several processors share.

The server returns a RequestError (protocol.errors) as the response. The functions here give the common errors a uniform
wording.
"""

from __future__ import annotations

from delaymq.message.errors import IllegalMessageError
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError
from delaymq.store.errors import (
    RecordTooLargeError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    StoreFollowingError,
    StoreFullError,
)

_SHOWN_CHARACTERS = 128
"""Maximum length of a peer's text that a remark repeats."""


def system_error(remark: str) -> RequestError:
    """Return error 1: the request cannot be served."""
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)


def message_illegal(remark: str) -> RequestError:
    """Return error 13: the message itself cannot be stored. Clients do not retry."""
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)


def no_permission(remark: str) -> RequestError:
    """Return error 16: access denied."""
    return RequestError(ResponseCode.NO_PERMISSION, remark)


def topic_missing(topic: str) -> RequestError:
    """Return error 17. Clients then request the route again."""
    shown = topic[:_SHOWN_CHARACTERS]
    return RequestError(
        ResponseCode.TOPIC_NOT_EXIST, f"topic[{shown}] not exist, apply first please! (mqadmin updateTopic creates it)"
    )


def group_missing(group: str) -> RequestError:
    """Return error 26: the consumer group does not exist."""
    shown = group[:_SHOWN_CHARACTERS]
    return RequestError(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group [{shown}] does not exist: create it (mqadmin updateSubGroup) or use a legal name",
    )


def unavailable(remark: str) -> RequestError:
    """Return error 14. Clients then try another broker."""
    return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {remark}")


def store_refusal(error: StoreError | IllegalMessageError) -> RequestError:
    """Return the error for a producer whose message the store rejected."""
    if isinstance(error, StoreFullError | StoreClosedError | StoreFailedError | StoreFollowingError):
        return unavailable(str(error))
    if isinstance(error, RecordTooLargeError | IllegalMessageError):
        return message_illegal(str(error))
    return system_error(str(error))
