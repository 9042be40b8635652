"""Responses that wait until a watermark of the log has reached an offset, or until their deadline."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from delaymq.broker.requests.results import Deferred
from delaymq.protocol.command import Response

_RECHECK_S: Final = 1.0
"""Time after which deadlines are examined again if none is known."""

Answer = Callable[[Response], None]


class _Waiting:
    __slots__ = ("answer", "count", "deadline", "done", "late", "respond", "until")

    def __init__(
        self, answer: Answer, count: int, until: int, deadline: float, respond: Callable[[], Response], late: Response
    ) -> None:
        self.answer = answer
        self.count = count
        self.until = until
        self.deadline = deadline
        self.respond = respond
        self.late = late
        self.done = False


class WaitQueue:
    """Responses that wait for one watermark. `reached` returns its physical offset."""

    def __init__(self, reached: Callable[[], int]) -> None:
        self._reached = reached
        self._waiting: deque[_Waiting] = deque()
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        """Number of requests whose responses wait."""
        return self._count

    def add(
        self,
        answer: Answer,
        until: int,
        timeout_ms: int,
        respond: Callable[[], Response],
        late: Response,
        count: int = 1,
    ) -> bool:
        """Answer with the result of `respond` when the watermark reaches `until`, or with `late` on the timeout; return
        whether it waits. `count`: number of requests that `answer` answers."""
        if until <= self._reached():
            answer(respond())
            return False
        if self._stopped:
            answer(late)
            return False
        deadline = self._loop.time() + timeout_ms / 1000
        self._waiting.append(_Waiting(answer, count, until, deadline, respond, late))
        self._count += count
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)
        return True

    def release(self) -> None:
        """Answer everything up to the watermark."""
        reached, waiting = self._reached(), self._waiting
        # `until` increases in the order of arrival, as the log does.
        while waiting and (waiting[0].done or waiting[0].until <= reached):
            each = self._first()
            if not each.done:
                each.answer(each.respond())

    def stop(self) -> None:
        """Answer everything that still waits as late."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self._answer_late(self._first())

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for each in self._waiting:
            if not each.done and each.deadline <= now:
                self._answer_late(each)
        while self._waiting and self._waiting[0].done:
            self._first()
        if self._waiting:
            next_deadline = min((each.deadline for each in self._waiting if not each.done), default=now + _RECHECK_S)
            self._timer = self._loop.call_at(next_deadline, self._expire)

    def _first(self) -> _Waiting:
        first = self._waiting.popleft()
        self._count -= first.count
        return first

    @staticmethod
    def _answer_late(each: _Waiting) -> None:
        if not each.done:
            each.done = True
            each.answer(each.late)


class BothWaits:
    """A response that waits for the disk and for replicas. As in RocketMQ, the result of the replicas takes precedence
    if both are late."""

    __slots__ = ("_answer", "_deferred", "_left", "_result")

    def __init__(self, answer: Answer, deferred: Deferred) -> None:
        self._answer = answer
        self._deferred = deferred
        self._result = deferred.response
        self._left = 2

    def flushed(self, response: Response) -> None:
        """Take the result of the wait for the disk."""
        if self._result is self._deferred.response:
            self._result = response
        self._settle()

    def replicated(self, response: Response) -> None:
        """Take the result of the wait for replicas."""
        if response is not self._deferred.response:
            self._result = response
        self._settle()

    def _settle(self) -> None:
        self._left -= 1
        if not self._left:
            self._answer(self._result)
