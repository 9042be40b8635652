"""Comparison of the cache with lists: a complete list before anything in a namespace is reconciled, then periodic
checks.

A restarted watch does not report objects deleted in the meantime, and a dead watch reports nothing; a list reveals
both.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from delaymq_operator.adapters.api_requests import ApiRequests, Request
from delaymq_operator.adapters.kinds import KINDS, WATCHED_KINDS, label_selector
from delaymq_operator.adapters.kube import list_all
from delaymq_operator.controller.cache import WatchCache
from delaymq_operator.reconcile.errors import KubeError

AFTER_SUSPICION_S: Final = 5.0
"""Delay after a suspected failure: watches of several kinds usually fail together, and their lists are compared
together.
"""
GRACE_S: Final = 10.0
"""Time after which a change found by a list counts as missed by the watch."""
START_S: Final = 3.0
"""Time after the start of watches, which list as well; an unnecessary comparison does no harm."""
MAX_INTERVAL_S: Final = 300.0
"""Maximum interval between checks: a restarted watch that finds no objects does not even report its restart."""
RECHECK_S: Final = 60.0
"""Interval until the next check of a watch that missed changes."""
DEAD_AFTER_CHECKS: Final = 3
"""Number of consecutive checks with missed changes after which a watch counts as dead."""
REPEAT_SENTENCE_S: Final = 60.0
MAX_SENTENCES: Final = 1_000

Scope = str | None
"""A namespace, or None for all of them."""
Lost = Callable[[Scope, "Obstacle"], None]

_logger = logging.getLogger(__name__)


class WarningLimiter:
    """Logs each message once, and again if it still applies after a while. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_s: dict[str, float] = {}

    def warn(self, sentence: str) -> None:
        """Log `sentence`, unless it was logged within the last minute."""
        now_s = self._clock()
        if now_s - self._said_s.get(sentence, float("-inf")) < REPEAT_SENTENCE_S:
            return
        if len(self._said_s) >= MAX_SENTENCES:
            self._said_s.clear()
        self._said_s[sentence] = now_s
        _logger.warning("%s", sentence)


class CacheSync:
    """Fills the cache with scopes, and compares all filled ones every `interval_s`. `clock`: monotonic seconds.

    `lost` is called for a filled scope that the operator may no longer list.
    """

    def __init__(
        self,
        requests: ApiRequests,
        cache: WatchCache,
        *,
        interval_s: float,
        lost: Lost,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests
        self._cache = cache
        self._interval_s = min(interval_s, MAX_INTERVAL_S)
        self._lost = lost
        self._clock = clock
        self._suspected = asyncio.Event()
        self._misses: dict[str, int] = {}
        self._repeats = WarningLimiter(clock)
        self._filled_s = float("inf")
        self._filled: set[Scope] = set()

    async def probe(self, scope: Scope) -> None:
        """Request one object of each kind. Obstacle if a kind cannot be listed."""
        for kind in WATCHED_KINDS:
            path = KINDS[kind].path(scope, query={"limit": "1"})
            try:
                await self._requests.send(Request("list", kind, "GET", path))
            except KubeError as error:
                raise Obstacle(error, kind) from error

    async def fill(self, scope: Scope) -> None:
        """List all objects of a scope. Obstacle on failure; the cache then has no objects of the scope."""
        self._cache.open(scope)
        try:
            for kind in WATCHED_KINDS:
                try:
                    items, version = await self._list(kind, scope)
                except KubeError as error:
                    raise Obstacle(error, kind) from error
                self._cache.replace(kind, scope, items, version)
        except BaseException:
            self._cache.close(scope)
            raise
        self._filled.add(scope)
        self._filled_s = self._clock()

    def empty(self, scope: Scope) -> None:
        """Forget a scope and stop comparing it."""
        self._filled.discard(scope)
        self._cache.close(scope)

    def suspect(self) -> None:
        """Schedule a comparison: a watch listed (after its start or a restart), or the API server was unreachable."""
        if self._clock() - self._filled_s >= START_S:
            self._suspected.set()

    async def run(self) -> None:
        """Compare scopes indefinitely."""
        while True:
            try:
                async with asyncio.timeout(RECHECK_S if self._misses else self._interval_s):
                    await self._suspected.wait()
                await asyncio.sleep(AFTER_SUSPICION_S)
            except TimeoutError:
                pass
            self._suspected.clear()
            try:
                for kind in WATCHED_KINDS:
                    await self._check(kind)
            except KubeError as error:
                self._repeats.warn(advice(error, kind))
                self._suspected.set()
            except Exception:
                # Without this task, changes missed by watches would go undetected.
                _logger.exception(
                    "comparing the cache of %s with the API server's list failed, a bug in the operator; retrying"
                    " later",
                    kind,
                )

    def dead_watches(self) -> list[str]:
        """Return kinds whose watch keeps missing changes, for which the process should restart."""
        return [kind for kind, misses in self._misses.items() if misses >= DEAD_AFTER_CHECKS]

    async def _check(self, kind: str) -> None:
        missed = 0
        for scope in tuple(self._filled):
            try:
                missed += await self._missed(kind, scope)
            except KubeError as error:
                if not error.forbidden:
                    raise
                # The other namespaces are still served.
                self._filled.discard(scope)
                self._lost(scope, Obstacle(error, kind))
        if missed:
            self._misses[kind] = self._misses.get(kind, 0) + 1
            _logger.info("the watch of %s missed %d changes; a list request found them", KINDS[kind].plural, missed)
        else:
            self._misses.pop(kind, None)

    async def _missed(self, kind: str, scope: Scope) -> int:
        """Return the number of changes that a watch has not reported within the grace period."""
        items, version = await self._list(kind, scope)
        if not self._cache.differs(kind, scope, items, version):
            return 0
        await asyncio.sleep(GRACE_S)
        return self._cache.replace(kind, scope, items, version)

    async def _list(self, kind: str, scope: Scope) -> tuple[list[dict[str, object]], str]:
        return await list_all(self._requests, kind, scope, selector=label_selector(kind))


class Obstacle(Exception):  # noqa: N818  (a state, and said so)
    """A kind cannot be listed; the message states what to do."""

    def __init__(self, error: KubeError, kind: str) -> None:
        super().__init__(advice(error, kind))
        self.forbidden = error.forbidden


def advice(error: KubeError, kind: str) -> str:
    """Return the action to take if a list fails."""
    described = KINDS[kind]
    what = f"{described.plural} ({described.api_version})"
    if error.absent:
        crds = "kubectl apply --server-side -f crds/"
        return f"the API server does not recognise {what}: install the CRDs, for example with `{crds}`; retrying"
    if error.forbidden:
        return (
            f"{error.message}: the operator's role lacks this permission: compare it with the role in the chart; "
            "retrying"
        )
    if error.status == 401:
        return f"the API server rejects the operator's token: {error.message}; retrying"
    return f"{what} cannot be listed: {error.message}; retrying"
