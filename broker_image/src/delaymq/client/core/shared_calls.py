"""Calls shared by several tasks: made once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from delaymq.client.errors import ClosedError

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SharedCalls(Generic[Key, Value]):
    """Runs at most one call per key at a time. Cancelling a caller does not end the call, since others may wait for
    it.
    """

    def __init__(self) -> None:
        self._tasks: dict[Key, asyncio.Task[Value]] = {}
        self._closed = False

    async def call(self, key: Key, make: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """Return or raise the result of `make()`, or of the current call of `key`."""
        task = self._tasks.get(key)
        if task is None:
            if self._closed:
                raise ClosedError("the client is closed")
            task = asyncio.get_running_loop().create_task(make())
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._done(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and self._closed and (caller is None or not caller.cancelling()):
                raise ClosedError("the client is closed") from None
            raise

    async def close(self) -> None:
        """Cancel current calls and reject new ones."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _done(self, key: Key, task: asyncio.Task[Value]) -> None:
        self._tasks.pop(key, None)
        if not task.cancelled():
            task.exception()  # avoids a warning of asyncio if no caller is waiting any more
