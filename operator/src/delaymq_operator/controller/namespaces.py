"""Each watched namespace (or all as one) is served separately: listed, then watched, until listing fails.

A namespace that is deleted takes the operator's RoleBinding with it, so its end looks like a missing permission. It
must not stop the others, and it may come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Final, Protocol

from delaymq_operator.adapters.kinds import KINDS
from delaymq_operator.controller.cache import WatchCache
from delaymq_operator.controller.controller import Controller
from delaymq_operator.controller.sync import CacheSync, Lost, Obstacle, Scope, WarningLimiter
from delaymq_operator.reconcile.context import Key

FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 10.0
"""Interval between attempts; whoever creates a namespace again, or grants a permission, waits for it."""

_logger = logging.getLogger(__name__)


class Watches(Protocol):
    """kopf in one scope."""

    async def run(self) -> None:
        """Returns only after `stop`; raises the error that ended it."""

    async def stop(self) -> None:
        """Stops everything."""


class StrandedResources(Protocol):
    """Resources under deletion in a namespace that must not be listed."""

    async def any(self, namespace: str) -> bool:
        """Whether there is something."""

    async def release(self, namespace: str) -> None:
        """One attempt to release it."""


class NamespaceServer:
    """Serves scopes. `left` is released at intervals in a scope that must not be listed."""

    def __init__(
        self,
        namespaces: tuple[str, ...],
        *,
        sync: Callable[[Lost], CacheSync],
        cache: WatchCache,
        controller: Controller,
        watches: Callable[[Scope], Watches],
        keys: Callable[[Scope], Iterable[Key]],
        left: StrandedResources,
    ) -> None:
        self._scopes: tuple[Scope, ...] = namespaces or (None,)
        self._cache = cache
        self._controller = controller
        self._watches = watches
        self._keys = keys
        self._left = left
        self._repeats = WarningLimiter()
        self._lost: dict[Scope, asyncio.Event] = {scope: asyncio.Event() for scope in self._scopes}
        self._nothing = asyncio.Event()
        self.sync = sync(self._lose)
        self.served: set[Scope] = set()
        """Scopes of which everything is known; only there anything is reconciled."""
        self.obstacles: dict[Scope, Obstacle] = {}
        """Why a scope is not served."""

    def serves(self, namespace: str) -> bool:
        """Whether resources in `namespace` are reconciled."""
        return namespace in self.served or None in self.served

    async def readable(self) -> None:
        """Returns when there is something to do, since one scope at least can be listed, or something is left in one
        that cannot; it says what is in the way, and tries without end."""
        retry_s = FIRST_RETRY_S
        while not await self._any_readable():
            await asyncio.sleep(retry_s)
            retry_s = min(MAX_RETRY_S, retry_s * 2)

    async def run(self, filled: Callable[[], None]) -> None:
        """Serves all scopes; calls `filled` after the first look at each. Returns when none is served any more, and
        raises what ended the watches of one."""
        self._nothing.clear()
        for scope in self._scopes:
            await self._fill(scope)
        filled()
        parts = [asyncio.create_task(self._keep(scope), name=f"serving {scope or 'all'}") for scope in self._scopes]
        parts.append(asyncio.create_task(self.sync.run(), name="comparing"))
        idle = asyncio.create_task(self._nothing.wait(), name="nothing served")
        try:
            done, _ = await asyncio.wait([*parts, idle], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*parts, idle):
                task.cancel()
            await asyncio.gather(*parts, idle, return_exceptions=True)

    async def _any_readable(self) -> bool:
        for scope in self._scopes:
            try:
                await self.sync.probe(scope)
            except Obstacle as obstacle:
                self._log_obstacle(scope, obstacle)
                if obstacle.forbidden and scope is not None and await self._left.any(scope):
                    return True
            else:
                self.obstacles.pop(scope, None)
                return True
        return False

    async def _keep(self, scope: Scope) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            if scope in self.served:
                await self._watch(scope)
                retry_s = FIRST_RETRY_S
            if scope is not None and scope in self.obstacles and self.obstacles[scope].forbidden:
                await self._left.release(scope)
            await asyncio.sleep(retry_s)
            retry_s = min(MAX_RETRY_S, retry_s * 2)
            await self._fill(scope)
            if not self.served:
                self._nothing.set()

    async def _fill(self, scope: Scope) -> None:
        try:
            await self.sync.fill(scope)
        except Obstacle as obstacle:
            self._log_obstacle(scope, obstacle)
            return
        self.obstacles.pop(scope, None)
        self._lost[scope].clear()
        self.served.add(scope)
        counts = ", ".join(
            f"{count} {KINDS[kind].plural}" for kind, count in self._cache.counts(scope).items() if count
        )
        where = "the cluster" if scope is None else f"namespace {scope}"
        _logger.info("%s has %s", where, counts or "DelayMQ resources were not listed yet")
        for key in self._keys(scope):
            self._controller.enqueue(key)

    async def _watch(self, scope: Scope) -> None:
        """Until the scope is lost."""
        watches = self._watches(scope)
        running = asyncio.create_task(watches.run(), name=f"watches {scope or 'all'}")
        lost = asyncio.create_task(self._lost[scope].wait(), name=f"lost {scope or 'all'}")
        try:
            await asyncio.wait((running, lost), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            await watches.stop()
            for task in (running, lost):
                task.cancel()
            await asyncio.gather(running, lost, return_exceptions=True)
        await self._leave(scope)

    async def _leave(self, scope: Scope) -> None:
        """Forgets what is in a scope, between runs: a run that found nothing there would make it anew."""
        self.served.discard(scope)
        async with AsyncExitStack() as stack:
            for key in list(self._keys(scope)):
                await stack.enter_async_context(self._controller.alone(key))
            self.sync.empty(scope)

    def _lose(self, scope: Scope, obstacle: Obstacle) -> None:
        self._log_obstacle(scope, obstacle)
        self._lost[scope].set()

    def _log_obstacle(self, scope: Scope, obstacle: Obstacle) -> None:
        self.obstacles[scope] = obstacle
        if scope is None:
            self._repeats.warn(str(obstacle))
            return
        hint = " (deleting a namespace also deletes the role in it)" if obstacle.forbidden else ""
        self._repeats.warn(f"namespace {scope} is not served: {obstacle}{hint}")
