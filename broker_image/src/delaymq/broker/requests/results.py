"""Results of processors: a response, or one that waits for the disk, for a message, or for other clients."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from delaymq.blocking_steps import BlockingSteps
from delaymq.protocol.command import Command, Response

if TYPE_CHECKING:
    from delaymq.broker.requests.session import Session

R = TypeVar("R", bound="Response | Deferred")


@dataclass(slots=True)
class ReplicaWait:
    """Wait of a response until replicas have the log; `late` is sent after `timeout_ms`."""

    timeout_ms: int
    late: Response
    alone: Response
    """Sent if no replica is in sync."""


@dataclass(slots=True)
class Deferred:
    """A response that is sent when the log is flushed up to `until`, or `late` after `timeout_ms`.

    It may also, or only, wait for replicas. If both waits time out, that of the replicas decides the response.
    """

    response: Response
    until: int
    """Physical offset: end of the appended records."""
    timeout_ms: int
    late: Response
    replicas: ReplicaWait | None = None
    waits_for_flush: bool = True
    of_tables: bool = False
    """Whether `until` is the number of a change of a table instead, and the response waits only for replicas."""


@dataclass(slots=True)
class Held:
    """A pull without a result that waits for a message that `matches` in this queue, until the deadline."""

    topic: str
    queue_id: int
    offset: int
    """Queue offset of the first message that is wanted."""
    deadline_ms: int
    matches: Callable[[int], bool]
    """Return whether a message with this tags code is wanted."""
    resume: Callable[[bool], Response | Held]
    """Run the pull again. With True, the result is a response in any case. Never raises."""
    properties: Callable[[bytes], bool] | None = None
    """Return whether a message with these raw properties is wanted. None: all messages are wanted."""
    cost: int = 1
    """Cost of `properties`, in comparisons."""


@dataclass(slots=True)
class RelayedRequests:
    """Requests to clients over their own connections; the response is derived from their responses.

    They are also sent for a one-way request, whose result is discarded.
    """

    requests: list[tuple[Session, Command]]
    """A separate command for each client, because the connection assigns its number."""
    timeout_ms: int
    answer: Callable[[list[Command | None]], Response | Deferred]
    """Called once, with the responses in the order of the requests. A response is None if it did not arrive in time, if
    the connection closed or is too far behind, or if it was too large to keep. Never raises."""


@dataclass(slots=True)
class TimeSliced:
    """Work that is too long for one time slice of the event loop and accesses no file.

    Other work runs between its steps. It is completed even for a one-way request and for a client that disconnects.
    Further requests of the connection wait until then.
    """

    steps: Generator[None, None, Response | Deferred]
    """Steps of at most about 1 ms each, run by `Broker.next_step`. The generator returns the response."""
    queued: bool = False
    """Whether the work needs much memory. Only a few such works run concurrently, and the others wait. The work does
    not start if its client has disconnected by then."""


@dataclass(slots=True)
class Listing:
    """A page of pending messages, which the server reads from the log in a thread."""

    query: dict[str, str]
    """Filters and token, as of GET /api/v1/delay/pending/messages."""


@dataclass(slots=True)
class LinkRequest:
    """A step of the handshake between members of a group, which the server performs."""


def first_step(steps: Generator[None, None, R], *, queued: bool = True) -> R | TimeSliced:
    """Return the response if one step completes the work, otherwise the remaining work."""
    try:
        next(steps)
    except StopIteration as end:
        response: R = end.value
        return response
    return TimeSliced(steps, queued)


Result = (
    Response | Deferred | Held | RelayedRequests | TimeSliced | Listing | LinkRequest | BlockingSteps[Response] | None
)
"""Blocking steps change a file, so they are also run for a one-way request."""
