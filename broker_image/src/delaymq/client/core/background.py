"""Background tasks that end with their owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

CANCEL_LIMIT_S = 10.0

_logger = logging.getLogger(__name__)


class Background:
    """Owns background tasks; after `close`, none of them runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start `work`; exceptions are logged."""
        task = asyncio.get_running_loop().create_task(self._logged(work))
        # A task that is cancelled before its first step never runs its coroutine.
        task.add_done_callback(lambda _: work.close())
        if self._closed:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run `work` periodically with pauses of `interval_ms`, the first before the first run."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                try:
                    await work()
                except Exception:
                    _logger.exception("%s: periodic task failed, retrying", self._name)

        return self.spawn(repeat())

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel all tasks except the caller's and return them; tasks started later end immediately."""
        self._closed = True
        own = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not own]
        for task in tasks:
            task.cancel()
        return tasks

    async def close(self) -> None:
        """Cancel all tasks and wait for them, within a time limit: a handler may ignore its cancellation."""
        tasks = self.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=CANCEL_LIMIT_S)
            if left:
                _logger.error("%s: %d tasks ignore their cancellation and are abandoned", self._name, len(left))

    async def _logged(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            _logger.exception("%s: a background task failed", self._name)
