"""Properties that make delayed delivery recoverable: the due time and the origin mark.

`__DMQ_DUE` = `due_ms:queueId:queueOffset`, on a record of the schedule topic. It has a fixed width, and is valid only
if queue and offset match the record, since clients and RocketMQ's broker copy properties when they send back.

`__DMQ_MARK` = `kind:queueId:queueOffset:physicalOffset`, on each record that the scheduler writes. It names the record
of the schedule topic that this one settles, and is valid only if that record matches (`broker.delivery`).

Both are stripped from messages of clients. Formats: docs/formats/store.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

DUE_WIDTH: Final = 16 + 1 + 4 + 1 + 20
_DUE = re.compile(r"(\d{16}):(\d{4}):(\d{20})\Z", re.ASCII)
_MARK = re.compile(r"(delivered|carried|cancelled|rescheduled|dropped):(\d{1,4}):(\d{1,20}):(\d{1,20})\Z", re.ASCII)


class MarkKind(StrEnum):
    """How a delayed message was settled."""

    DELIVERED = "delivered"
    CARRIED = "carried"
    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    DROPPED = "dropped"


MARK_WIDTH: Final = max(map(len, MarkKind)) + 1 + 4 + 1 + 20 + 1 + 20
"""Maximum length of a mark: kind, queue and two offsets, separated by colons."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The settled record of the schedule topic, and how it was settled."""

    kind: MarkKind
    queue_id: int
    queue_offset: int
    physical_offset: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.queue_id}:{self.queue_offset}:{self.physical_offset}"


def format_due(due_ms: int, queue_id: int, queue_offset: int) -> str:
    """Return the value of `__DMQ_DUE`."""
    # In half the time of a format specification for each number.
    return f"{str(due_ms).zfill(16)}:{str(queue_id).zfill(4)}:{str(queue_offset).zfill(20)}"


def parse_due(text: str, queue_id: int, queue_offset: int) -> int | None:
    """Return the due time in ms, or None if `text` is not that of the record at `queue_id` and `queue_offset`."""
    match = _DUE.match(text)
    if match is None or int(match[2]) != queue_id or int(match[3]) != queue_offset:
        return None
    return int(match[1])


def parse_mark(text: str) -> Mark | None:
    """Return the mark, or None if `text` is not a mark."""
    match = _MARK.match(text)
    if match is None:
        return None
    return Mark(MarkKind(match[1]), int(match[2]), int(match[3]), int(match[4]))
