"""What a processor can hand back: an answer, one that waits for the disk, or one that waits for a message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from delaymq.protocol.command import Response


@dataclass(slots=True)
class Deferred:
    """`response` goes out when the store has confirmed everything below `until`; `late` goes out after `timeout_ms`."""

    response: Response
    until: int
    """Physical offset: end of what was appended."""
    timeout_ms: int
    late: Response


@dataclass(slots=True)
class Held:
    """A pull that found nothing and may wait: a message that `matches` in this queue, or the deadline, resumes it."""

    topic: str
    queue_id: int
    offset: int
    """Queue offset of the first message that would do."""
    deadline_ms: int
    matches: Callable[[int], bool]
    """Whether a message with this tags code is wanted."""
    resume: Callable[[bool], Response | Held]
    """Runs the pull again; with True the result is an answer in any case. Never raises."""


Result = Response | Deferred | Held | None
