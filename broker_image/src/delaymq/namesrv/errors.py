"""Errors of a NameServer; refusals to peers are RequestErrors (protocol.errors)."""

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
    "name",
    "address",
    "unreadable",
    "owner",
    "room",
)
"""Why a request is refused: by the rules, because a broker's name or address is another's for now (`owner`), or because
a table is full or the peer took its share of it (`room`)."""


class NamesrvError(Exception):
    """A NameServer that cannot start; the text says what to do."""


class RefusalError(RequestError):
    """A request that the rules forbid; `reason` is one of REASONS."""

    def __init__(self, reason: str, remark: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, EXCEPTION + remark)
        self.reason = reason
