"""Requests that the broker relays to its clients, with their responses combined into one."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from delaymq.broker.requests.results import Deferred, RelayedRequests
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import MAX_FRAME_BYTES, Command, Response
from delaymq.server.requests.client_session import ClientSession
from delaymq.transport import TransportError

MAX_OPEN_PER_REQUESTER: Final = 1_000
"""Maximum pending requests per connection; each takes memory until its clients respond or time out."""
MAX_OPEN_REQUESTS: Final = 20_000
"""Maximum pending relayed requests in total: enough for a group of thousands, but not repeatedly at the same time."""
MAX_HELD_BYTES_PER_REQUESTER: Final = 2 * MAX_FRAME_BYTES
"""Memory limit of a connection's pending requests, such as replies that a producer never confirms; at megabytes each,
a limit on their number would not suffice."""
MAX_HELD_BYTES: Final = 4 * MAX_HELD_BYTES_PER_REQUESTER
"""Memory limit of all connections' pending requests."""
MAX_RESPONSE_BYTES: Final = MAX_FRAME_BYTES
"""Limit of the responses kept for one request, because more would not fit into one frame."""
MAX_KEPT_BYTES: Final = 4 * MAX_FRAME_BYTES
"""The same for all requests, so that large responses do not exhaust the memory."""
SENT_AT_ONCE: Final = 50
"""Relayed requests sent per loop iteration, each a system call."""

Reply = Callable[[ClientSession, Command, Response], None]
Defer = Callable[[ClientSession, Command, Deferred], None]


class _Share:
    """Pending requests of one connection, or of all."""

    __slots__ = ("held_bytes", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.held_bytes = 0

    def add(self, requests: int, held_bytes: int) -> None:
        self.requests += requests
        self.held_bytes += held_bytes


class _Relay:
    """One request that waits for responses of clients."""

    __slots__ = ("answers", "held_bytes", "kept_bytes", "open", "relayed", "request", "sent", "session")

    def __init__(self, session: ClientSession, request: Command, relayed: RelayedRequests) -> None:
        self.session = session
        self.request = request
        self.relayed = relayed
        self.answers: list[Command | None] = [None] * len(relayed.requests)
        self.open = len(relayed.requests)
        self.sent = 0
        self.kept_bytes = 0
        self.held_bytes = _bytes_of(request) + sum(
            _bytes_of(question) for _, question in relayed.requests if question.body is not request.body
        )


class ClientRequests:
    """All requests that wait for clients; `defer` takes responses that wait for the disk."""

    def __init__(self, reply: Reply, defer: Defer) -> None:
        self._reply = reply
        self._defer = defer
        self._loop = asyncio.get_running_loop()
        self._of_requester: dict[int, _Share] = {}
        self._of_all = _Share()
        self._open_requests = 0
        self._kept_bytes = 0
        self._closing = False

    @property
    def open_requests(self) -> int:
        """Number of relayed requests without a response."""
        return self._open_requests

    def relay(self, session: ClientSession, request: Command, relayed: RelayedRequests) -> None:
        """Relay requests to clients, and answer `request` when each has a response or has timed out.

        A disconnect of the requester changes nothing, because the requests have already been sent.
        """
        if self._closing:
            return
        count = len(relayed.requests)
        relay = _Relay(session, request, relayed)
        of_asker = self._of_requester.get(session.id) or _Share()
        if (
            of_asker.requests >= MAX_OPEN_PER_REQUESTER
            or self._open_requests + count > MAX_OPEN_REQUESTS
            or _is_beyond(of_asker, relay.held_bytes, MAX_HELD_BYTES_PER_REQUESTER)
            or _is_beyond(self._of_all, relay.held_bytes, MAX_HELD_BYTES)
        ):
            self._reply(session, request, _busy(of_asker.requests, self._open_requests))
            return
        self._of_requester[session.id] = of_asker
        for share in (of_asker, self._of_all):
            share.add(1, relay.held_bytes)
        self._open_requests += count
        if count:
            self._send(relay)
        else:
            self._finish(relay)

    def close(self) -> None:
        """Stop answering at shutdown, when the reset of their connections notifies the requesters."""
        self._closing = True

    def _send(self, relay: _Relay) -> None:
        requests, timeout_ms = relay.relayed.requests, relay.relayed.timeout_ms
        end = min(relay.sent + SENT_AT_ONCE, len(requests))
        for index in range(relay.sent, end):
            future = None if self._closing else _start(*requests[index], timeout_ms)
            if future is None:
                self._answered(relay, index, None)
            else:
                future.add_done_callback(partial(self._relay_ended, relay, index))
        relay.sent = end
        if end < len(requests):
            self._loop.call_soon(self._send, relay)

    def _relay_ended(self, relay: _Relay, index: int, future: "asyncio.Future[Command]") -> None:
        failed = future.cancelled() or future.exception() is not None
        self._answered(relay, index, None if failed else future.result())

    def _answered(self, relay: _Relay, index: int, answer: Command | None) -> None:
        if answer is not None:
            kept = len(answer.body)
            if relay.kept_bytes + kept <= MAX_RESPONSE_BYTES and self._kept_bytes + kept <= MAX_KEPT_BYTES:
                relay.answers[index] = answer
                relay.kept_bytes += kept
                self._kept_bytes += kept
        self._open_requests -= 1
        relay.open -= 1
        if relay.open == 0:
            self._finish(relay)

    def _finish(self, relay: _Relay) -> None:
        self._kept_bytes -= relay.kept_bytes
        session = relay.session
        of_asker = self._of_requester[session.id]
        for share in (of_asker, self._of_all):
            share.add(-1, -relay.held_bytes)
        if not of_asker.requests:
            del self._of_requester[session.id]
        if self._closing:
            return
        result = relay.relayed.answer(relay.answers)
        if isinstance(result, Deferred):
            self._defer(session, relay.request, result)
        else:
            self._reply(session, relay.request, result)


def _start(session: object, question: Command, timeout_ms: int) -> "asyncio.Future[Command] | None":
    """Send a request and return the future of its response; None if it cannot be sent."""
    if not isinstance(session, ClientSession) or session.connection.is_behind:
        return None
    try:
        return session.connection.start_request(question, timeout_ms)
    except (TransportError, ValueError):  # disconnected, too many pending requests, or larger than a frame
        return None


def _bytes_of(command: Command) -> int:
    """Return the memory of a kept command."""
    texts = sum(len(name) + len(value) for name, value in command.fields.items())
    return len(command.body) + texts + len(command.remark or "")


def _is_beyond(share: _Share, more_bytes: int, limit: int) -> bool:
    # A single request is always accepted, as it came in one frame.
    return bool(share.requests) and share.held_bytes + more_bytes > limit


def _busy(of_asker: int, in_all: int) -> Response:
    return Response(
        ResponseCode.SYSTEM_BUSY,
        f"[REJECTREQUEST]system busy, start flow control for a while: {of_asker} requests of this connection and"
        f" {in_all} in total wait for responses of clients",
    )
