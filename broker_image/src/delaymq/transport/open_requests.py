"""Open requests of one connection by opaque, with one timer for all timeouts."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from delaymq.protocol.command import Command
from delaymq.transport.errors import ConnectionClosedError, RequestTimeoutError, TooManyRequestsError

MAX_OPAQUE: Final = 2**31 - 1


class OpenRequests:
    """Matches responses with requests. Times are the loop's, in seconds; a timer runs only while a request is open."""

    __slots__ = ("_address", "_loop", "_max_open", "_opaque", "_open", "_timer", "_timer_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str, max_open: int) -> None:
        self._loop = loop
        self._address = address
        self._max_open = max_open
        self._open: dict[int, tuple[asyncio.Future[Any], float, int, int, bool]] = {}
        self._opaque = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def next_opaque(self) -> int:
        """Return a number for the next request that no open request has."""
        opaque = self._opaque + 1 if self._opaque < MAX_OPAQUE else 1
        while opaque in self._open:
            opaque = opaque + 1 if opaque < MAX_OPAQUE else 1
        self._opaque = opaque
        return opaque

    def add(
        self, opaque: int, code: int, timeout_ms: int, deadline: float, *, takes_parts: bool = False
    ) -> asyncio.Future[Any]:
        """Return a future for the response to `opaque`: a command, or parts of one if `takes_parts`.

        `deadline` is the end of `timeout_ms`.

        TooManyRequestsError if the limit is reached.
        """
        if len(self._open) >= self._max_open:
            raise TooManyRequestsError(self._address, f"{self._max_open} requests are already waiting for responses")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._open[opaque] = (future, deadline, code, timeout_ms, takes_parts)
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)
        return future

    def answer(self, response: Command) -> bool:
        """Pass `response` to its request; return False if none waits for it, for example because it is late."""
        entry = self._open.pop(response.opaque, None)
        if entry is None:
            return False
        if not entry[0].done():
            entry[0].set_result(response)
        return True

    def answer_in_parts(self, answers: Iterable[tuple[Any, ...]]) -> int:
        """Pass parts of responses, which begin with the opaque and the end of the frame, to their requests.

        Returns the end of the last one before the first response to another request; 0 if there is none.
        """
        waiting, end = self._open, 0
        for answer in answers:
            entry = waiting.get(answer[0])
            if entry is None or not entry[4]:
                break
            del waiting[answer[0]]
            end = answer[1]
            if not entry[0].done():
                entry[0].set_result(answer)
        return end

    def forget(self, opaque: int) -> None:
        """Remove a request whose response is no longer needed."""
        self._open.pop(opaque, None)

    def fail_all(self, reason: str) -> None:
        """Fail every open request because the connection ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self._open = self._open, {}
        for future, *_ in entries.values():
            if not future.done():
                future.set_exception(ConnectionClosedError(self._address, reason))

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        late = [opaque for opaque, entry in self._open.items() if entry[1] <= now]
        for opaque in late:
            future, _, code, timeout_ms, _ = self._open.pop(opaque)
            if not future.done():
                future.set_exception(RequestTimeoutError(self._address, code, timeout_ms))
        if self._open:
            self._set_timer(min(entry[1] for entry in self._open.values()))
