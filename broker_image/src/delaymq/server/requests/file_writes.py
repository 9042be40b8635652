"""Changes of files on behalf of clients, made sequentially, with their system calls in a thread.

Sequential changes cannot overwrite each other. Each request is answered when its steps have completed, that is, when
the change is durable and in effect.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

from delaymq.blocking_steps import BlockingSteps
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.server.requests.client_session import ClientSession
from delaymq.server.resources import started

# Shared by all servers of a process, because two of them may change the same configuration file.
_writer = ThreadPoolExecutor(1, "changes of files")

MAX_WAITING_PER_CONNECTION: Final = 16
"""Tools send one request at a time; a client that sends hundreds must not block the others."""
MAX_WAITING: Final = 1_000
MAX_WAITING_BYTES: Final = 16 << 20
"""Memory limit of waiting requests; a single request is always accepted."""

Work = Callable[[], None]
T = TypeVar("T")


class Guarded(Protocol):
    """Runs a function for a request code, and converts its exceptions to a response."""

    def __call__(self, code: int, run: Callable[[], T], /) -> T | Response: ...


class FileWriter:
    """File changes of one server. Create it within the loop."""

    def __init__(self, reply: Callable[[ClientSession, Command, Response], None], guarded: Guarded) -> None:
        self._reply = reply
        self._guarded = guarded
        self._loop = asyncio.get_running_loop()
        started(_writer, 1)
        self._waiting: deque[tuple[ClientSession, Command, BlockingSteps[Response]]] = deque()
        self._of_session: Counter[int] = Counter()
        self._bytes = 0
        self._working: asyncio.Task[None] | None = None
        self._stopped = False

    def submit(self, session: ClientSession, request: Command, steps: BlockingSteps[Response]) -> None:
        """Queue a change, and answer `request` when it is made."""
        if self._stopped:
            return
        full = len(self._waiting) >= MAX_WAITING or (
            bool(self._waiting) and self._bytes + len(request.body) > MAX_WAITING_BYTES
        )
        if full or self._of_session[session.id] >= MAX_WAITING_PER_CONNECTION:
            remark = f"{len(self._waiting)} changes are waiting for the disk: retry when one of them is done"
            self._reply(session, request, Response(ResponseCode.SYSTEM_BUSY, remark))
            return
        self._waiting.append((session, request, steps))
        self._of_session[session.id] += 1
        self._bytes += len(request.body)
        if self._working is None:
            self._working = self._loop.create_task(self._work(), name="changes of files")

    async def stop(self) -> None:
        """Stop after the current change; queued changes are dropped without a response."""
        self._stopped = True
        if self._working is not None:
            await self._working

    async def _work(self) -> None:
        while self._waiting and not self._stopped:
            session, request, steps = self._waiting.popleft()
            response = await self._finished(request.code, steps)
            self._bytes -= len(request.body)
            self._of_session[session.id] -= 1
            if not self._of_session[session.id]:
                del self._of_session[session.id]
            self._reply(session, request, response)
            await asyncio.sleep(0)  # rejected changes complete without waiting
        self._working = None

    async def _finished(self, code: int, steps: BlockingSteps[Response]) -> Response:
        error: Exception | None = None
        while True:
            work = self._guarded(code, partial(_advance, steps, error))
            if isinstance(work, Response):
                return work
            error = None
            try:
                await self._loop.run_in_executor(_writer, work)
            except Exception as caught:
                error = caught


def _advance(steps: BlockingSteps[Response], error: Exception | None) -> Work | Response:
    try:
        return next(steps) if error is None else steps.throw(error)
    except StopIteration as end:
        response: Response = end.value
        return response
