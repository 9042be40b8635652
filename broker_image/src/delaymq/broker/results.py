"""What a processor can hand back: an answer, or one that waits for the disk, for a message, or for other clients."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delaymq.blocking_steps import BlockingSteps
from delaymq.protocol.command import Command, Response

if TYPE_CHECKING:
    from delaymq.broker.session import Session


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
    properties: Callable[[bytes], bool] | None = None
    """Whether a message with these raw properties is wanted; None: any."""
    cost: int = 1
    """How much work `properties` is, in comparisons."""


@dataclass(slots=True)
class RelayedRequests:
    """Requests that go to clients over their own connections; what they answer makes up the answer.

    They are sent also for a one-way request; only nobody is told the result then.
    """

    requests: list[tuple[Session, Command]]
    """A command of its own for each: the connection numbers it."""
    timeout_ms: int
    answer: Callable[[list[Command | None]], Response | Deferred]
    """Called once, with the answers in the order of the questions: None where none came in time, where the connection
    ended or is behind, or where there was too much to keep. Never raises."""


@dataclass(slots=True)
class TimeSliced:
    """Work that is too long for one turn of the loop, and touches no file: others have their turn between its steps.

    It is done to its end also for a one-way request, and for a client that leaves. Further requests of the connection
    wait until then.
    """

    steps: Generator[None, None, Response | Deferred]
    """Each some 1 ms at most; returns the answer. To be run by `Broker.next_step`."""
    queued: bool = False
    """Whether it fills much memory on its way: only some of these are under way at once, and the others wait. It is not
    begun for a client that has left by then."""


def first_step(steps: Generator[None, None, Response], *, queued: bool = True) -> Response | TimeSliced:
    """The answer if one step reaches it; otherwise the rest of the work."""
    try:
        next(steps)
    except StopIteration as end:
        response: Response = end.value
        return response
    return TimeSliced(steps, queued)


Result = Response | Deferred | Held | RelayedRequests | TimeSliced | BlockingSteps[Response] | None
"""Steps are a change of a file: they are done also for a one-way request."""
