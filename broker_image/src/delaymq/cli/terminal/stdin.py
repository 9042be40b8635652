"""Standard input, read in a thread: work in progress continues while a line is awaited."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import BinaryIO, Final, TypeVar

Item = TypeVar("Item")
MAX_AHEAD: Final = 16
"""Items that are read before they are wanted; each may be a message of megabytes."""


async def in_thread(source: Iterator[Item]) -> AsyncIterator[Item]:
    """What `source` gives, read in a thread of its own, which an end of the command does not wait for."""
    loop = asyncio.get_running_loop()
    read: asyncio.Queue[tuple[Item] | BaseException | None] = asyncio.Queue()
    room = threading.Semaphore(MAX_AHEAD)

    def run() -> None:
        end: BaseException | None = None
        try:
            for item in source:
                room.acquire()
                loop.call_soon_threadsafe(read.put_nowait, (item,))
        except BaseException as error:  # raised where the items are taken
            end = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(read.put_nowait, end)

    threading.Thread(target=run, name="input", daemon=True).start()
    while isinstance(given := await read.get(), tuple):
        room.release()
        yield given[0]
    if given is not None:
        raise given


def standard_input() -> BinaryIO:
    """Stdin by a reader of its own: the interpreter's, held by a thread that waits, would abort the process's end."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except OSError:  # a test's, which is no file
        return sys.stdin.buffer
