"""Independent serving of each watched namespace (or of all as one): it is listed, then watched, until listing fails.

Deleting a namespace also deletes the operator's RoleBinding in it, so its end looks like a missing permission. It
must not stop the other namespaces, and it may be created again.
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
"""Interval between attempts: the maximum wait after a namespace is created again or a permission is granted."""

_logger = logging.getLogger(__name__)


class Watches(Protocol):
    """kopf's watches in a scope."""

    async def run(self) -> None:
        """Run until `stop`; raise the error that ended the watches."""

    async def stop(self) -> None:
        """Stop all watches."""


class StrandedResources(Protocol):
    """Resources being deleted in a namespace that the operator may not list."""

    async def any(self, namespace: str) -> bool:
        """Return whether there is one."""

    async def release(self, namespace: str) -> None:
        """Try once to release them."""


class NamespaceServer:
    """Serves scopes. `left` is released at intervals in scopes that the operator may not list."""

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
        """Scopes that are completely listed; only their resources are reconciled."""
        self.obstacles: dict[Scope, Obstacle] = {}
        """Reasons why scopes are not served."""

    def serves(self, namespace: str) -> bool:
        """Return whether resources in `namespace` are reconciled."""
        return namespace in self.served or None in self.served

    async def readable(self) -> None:
        """Wait until a scope can be listed, or until a resource is left in one that cannot; log obstacles and retry
        indefinitely.
        """
        retry_s = FIRST_RETRY_S
        while not await self._any_readable():
            await asyncio.sleep(retry_s)
            retry_s = min(MAX_RETRY_S, retry_s * 2)

    async def run(self, filled: Callable[[], None]) -> None:
        """Serve all scopes; call `filled` after the first list of each.

        Returns when no scope is served any more, and raises the error that ended the watches of one.
        """
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
        _logger.info("%s has %s", where, counts or "no DelayMQ resources")
        for key in self._keys(scope):
            self._controller.enqueue(key)

    async def _watch(self, scope: Scope) -> None:
        """Watch a scope until it is lost."""
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
        """Forget the objects of a scope between runs, since a run that found none would create them again."""
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
