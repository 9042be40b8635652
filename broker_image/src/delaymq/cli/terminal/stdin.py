"""Standard input read in a thread, so that other work continues while waiting for a line."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import BinaryIO, Final, TypeVar

Item = TypeVar("Item")
MAX_AHEAD: Final = 16
"""Maximum number of items read ahead; each may be a message of megabytes."""


async def in_thread(source: Iterator[Item]) -> AsyncIterator[Item]:
    """Yield the items of `source`, read in a daemon thread that does not delay the command's exit."""
    loop = asyncio.get_running_loop()
    read: asyncio.Queue[tuple[Item] | BaseException | None] = asyncio.Queue()
    room = threading.Semaphore(MAX_AHEAD)

    def run() -> None:
        end: BaseException | None = None
        try:
            for item in source:
                room.acquire()
                loop.call_soon_threadsafe(read.put_nowait, (item,))
        except BaseException as error:  # raised in the consumer
            end = error
        with contextlib.suppress(RuntimeError):  # the loop is closed, so there is no consumer
            loop.call_soon_threadsafe(read.put_nowait, end)

    threading.Thread(target=run, name="input", daemon=True).start()
    while isinstance(given := await read.get(), tuple):
        room.release()
        yield given[0]
    if given is not None:
        raise given


def standard_input() -> BinaryIO:
    """Open stdin separately: a thread blocked in sys.stdin would abort the interpreter's shutdown."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except OSError:  # replaced in tests, and not a file
        return sys.stdin.buffer
