"""The two properties by which delays survive anything: the due time, and the origin mark.

`__DMQ_DUE` = `due_ms:queueId:queueOffset`, on a record of the schedule topic. Fixed width. Believed only when queue
and offset are the record's own, since clients and the real broker's send-back copy properties.

`__DMQ_MARK` = `kind:queueId:queueOffset:physicalOffset`, on whatever the scheduler writes: which record of the
schedule topic this one settles. Believed only when the record that it names matches (`broker.delivery`).

Both are stripped from what clients send. Formats: docs/formats/store.md.
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


# The longest kind, a queue, two offsets, and the colons between them.
MARK_WIDTH: Final = max(map(len, MarkKind)) + 1 + 4 + 1 + 20 + 1 + 20


@dataclass(frozen=True, slots=True)
class Mark:
    """Which record of the schedule topic was settled, and how."""

    kind: MarkKind
    queue_id: int
    queue_offset: int
    physical_offset: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.queue_id}:{self.queue_offset}:{self.physical_offset}"


def format_due(due_ms: int, queue_id: int, queue_offset: int) -> str:
    """The value of `__DMQ_DUE`."""
    return f"{due_ms:016d}:{queue_id:04d}:{queue_offset:020d}"


def parse_due(text: str, queue_id: int, queue_offset: int) -> int | None:
    """The due time in ms, or None when `text` is not a due time of the record at `queue_id` and `queue_offset`."""
    match = _DUE.match(text)
    if match is None or int(match[2]) != queue_id or int(match[3]) != queue_offset:
        return None
    return int(match[1])


def parse_mark(text: str) -> Mark | None:
    """The mark, or None when `text` is not one."""
    match = _MARK.match(text)
    if match is None:
        return None
    return Mark(MarkKind(match[1]), int(match[2]), int(match[3]), int(match[4]))
