"""Errors of a NameServer; rejections of requests are RequestErrors (protocol.errors)."""

from typing import Final

from delaymq.access import EXCEPTION
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError

REASONS: Final = (
    "unsigned",
    "unknown_key",
    "signature",
    "second_required",
    "plain",
    "fields",
    "admin",
    "permission",
    "name",
    "address",
    "unreadable",
    "owner",
    "room",
)
"""Reasons of rejections: the rules, a broker name or address owned by another broker (`owner`), or a full table or an
exhausted share of it (`room`)."""


class NamesrvError(Exception):
    """The NameServer cannot start; the text says what to do."""


class RefusalError(RequestError):
    """A request rejected by the rules; `reason` is one of REASONS."""

    def __init__(self, reason: str, remark: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, EXCEPTION + remark)
        self.reason = reason
