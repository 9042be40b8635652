"""Errors of the broker, and refusals that several processors share.

A RequestError (protocol.errors) is answered; the functions here only give the common ones one wording.
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
    StoreFullError,
)

# How much of a peer's text a remark repeats.
_SHOWN_CHARACTERS = 128


def system_error(remark: str) -> RequestError:
    """1: the request cannot be served as it stands."""
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)


def message_illegal(remark: str) -> RequestError:
    """13: the message itself cannot be stored; clients do not retry."""
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)


def no_permission(remark: str) -> RequestError:
    """16."""
    return RequestError(ResponseCode.NO_PERMISSION, remark)


def topic_missing(topic: str) -> RequestError:
    """17: clients ask for the route anew."""
    shown = topic[:_SHOWN_CHARACTERS]
    return RequestError(
        ResponseCode.TOPIC_NOT_EXIST, f"topic[{shown}] not exist, apply first please! (mqadmin updateTopic creates it)"
    )


def group_missing(group: str) -> RequestError:
    """26."""
    shown = group[:_SHOWN_CHARACTERS]
    return RequestError(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group [{shown}] does not exist: create it (mqadmin updateSubGroup) or use a legal name",
    )


def unavailable(remark: str) -> RequestError:
    """14: clients try another broker."""
    return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {remark}")


def store_refusal(error: StoreError | IllegalMessageError) -> RequestError:
    """What a producer is told when the store does not take a message."""
    if isinstance(error, StoreFullError | StoreClosedError | StoreFailedError):
        return unavailable(str(error))
    if isinstance(error, RecordTooLargeError | IllegalMessageError):
        return message_illegal(str(error))
    return system_error(str(error))
