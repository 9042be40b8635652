"""Requests for pages of pending messages, which are read from the log in threads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from delaymq.broker.requests.results import Listing
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.server.requests.client_session import ClientSession
from delaymq.server.requests.file_writes import Guarded
from delaymq.server.requests.replies import reply

MAX_LISTINGS: Final = 16
"""Maximum concurrent requests. Two of them read at the same time."""
MAX_PER_CONNECTION: Final = 4


class Pages(Protocol):
    """Reads pages."""

    async def page(self, fields: dict[str, str], /) -> Response: ...
    async def close(self) -> None: ...


class Listings:
    """Requests of one server."""

    def __init__(self, load_pages: Callable[[], Awaitable[Pages]], guarded: Guarded) -> None:
        """`load_pages` is called once, at the first request."""
        self._load_pages = load_pages
        self._guarded = guarded
        self._pages: Pages | None = None
        self._loading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_session: Counter[int] = Counter()

    def __len__(self) -> int:
        """Return the number of requests in progress."""
        return len(self._tasks)

    def begin(self, session: ClientSession, command: Command, listing: Listing) -> None:
        """Read a page, and respond to `command`."""
        if len(self) >= MAX_LISTINGS or self._of_session[session.id] >= MAX_PER_CONNECTION:
            remark = f"{len(self)} other requests are reading pending messages: try again"
            reply(session, command, Response(ResponseCode.SYSTEM_BUSY, remark))
            return
        self._of_session[session.id] += 1
        task = asyncio.get_running_loop().create_task(self._answer(session, command, listing))
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, session.id))

    def _done(self, session_id: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._of_session[session_id] -= 1
        if not self._of_session[session_id]:
            del self._of_session[session_id]

    async def stop(self) -> None:
        """Cancel the requests."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._pages is not None:
            await self._pages.close()

    async def _answer(self, session: ClientSession, command: Command, listing: Listing) -> None:
        try:
            async with self._loading:
                if self._pages is None:
                    self._pages = await self._load_pages()
            response = await self._pages.page(listing.query)
        except Exception as error:
            response = self._guarded(command.code, partial(_raise, error))
        reply(session, command, response)


def _raise(error: Exception) -> Response:
    raise error
