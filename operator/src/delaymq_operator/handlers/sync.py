"""The cache against lists: everything once before anything is reconciled, later now and then.

A watch that had to begin anew does not tell what was deleted meanwhile, a watch that died tells nothing: a list does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from delaymq_operator.adapters.api_requests import ApiRequests
from delaymq_operator.adapters.kinds import KINDS, WATCHED_KINDS, label_selector
from delaymq_operator.adapters.kube import list_all
from delaymq_operator.handlers.cache import WatchCache
from delaymq_operator.reconcile.errors import KubeError

FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0
AFTER_SUSPICION_S: Final = 5.0
"""Watches of several kinds break at once; their lists are compared together."""
GRACE_S: Final = 10.0
"""News that a list has are missed by the watch if it has not told them after this long."""
START_S: Final = 3.0
"""Watches list too when they are started; comparing needlessly does no harm."""
MAX_INTERVAL_S: Final = 300.0
"""A watch that began anew and found nothing any more does not even tell that it began anew."""
RECHECK_S: Final = 60.0
"""What missed something is looked at again so soon."""
DEAD_AFTER_CHECKS: Final = 3
"""A watch that missed something in so many checks, one after the other, is dead."""
REPEAT_SENTENCE_S: Final = 60.0

_logger = logging.getLogger(__name__)


class CacheSync:
    """Fills the cache, and compares it every `interval_s`. `clock`: seconds that only grow."""

    def __init__(
        self,
        requests: ApiRequests,
        cache: WatchCache,
        *,
        namespaces: tuple[str, ...],
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests
        self._cache = cache
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._interval_s = min(interval_s, MAX_INTERVAL_S)
        self._clock = clock
        self._suspected = asyncio.Event()
        self._misses: dict[str, int] = {}
        self._said: dict[str, float] = {}
        self._filled_s = float("inf")
        self.synced = False
        """Whether the cache has been filled once: before that, absence means nothing."""

    async def fill(self) -> None:
        """Returns when everything was listed; says what is in the way, and tries without end."""
        retry_s = FIRST_RETRY_S
        while not self.synced:
            try:
                for kind in WATCHED_KINDS:
                    for namespace in self._namespaces:
                        await self._compare(kind, namespace)
                self.synced, self._filled_s = True, self._clock()
            except KubeError as error:
                self._say(advice(error, kind))
                await asyncio.sleep(retry_s)
                retry_s = min(MAX_RETRY_S, retry_s * 2)
        counts = ", ".join(f"{count} {KINDS[kind].plural}" for kind, count in self._cache.counts().items() if count)
        _logger.info("the cluster has %s", counts or "nothing of ours yet")

    def suspect(self) -> None:
        """A watch lists (after the start, because it had to begin anew), or the API server was away."""
        if self._clock() - self._filled_s >= START_S:
            self._suspected.set()

    async def run(self) -> None:
        """Compares for ever."""
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
                self._say(advice(error, kind))
                self._suspected.set()
            except Exception:
                # Without this task nobody would see what the watches miss.
                _logger.exception("comparing %s with a list: a bug of the operator; again in a while", kind)

    def dead_watches(self) -> list[str]:
        """Kinds whose watch keeps missing what happens: the process is better started anew."""
        return [kind for kind, misses in self._misses.items() if misses >= DEAD_AFTER_CHECKS]

    async def _check(self, kind: str) -> None:
        missed = sum([await self._missed(kind, namespace) for namespace in self._namespaces])
        if missed:
            self._misses[kind] = self._misses.get(kind, 0) + 1
            _logger.info("the watch of %s missed %d changes, a list told them", KINDS[kind].plural, missed)
        else:
            self._misses.pop(kind, None)

    async def _missed(self, kind: str, namespace: str | None) -> int:
        """How much a watch has not told even a while after it was there."""
        items, version = await self._list(kind, namespace)
        if not self._cache.differs(kind, namespace, items, version):
            return 0
        await asyncio.sleep(GRACE_S)
        return self._cache.replace(kind, namespace, items, version)

    async def _compare(self, kind: str, namespace: str | None) -> None:
        items, version = await self._list(kind, namespace)
        self._cache.replace(kind, namespace, items, version)

    async def _list(self, kind: str, namespace: str | None) -> tuple[list[dict[str, object]], str]:
        return await list_all(self._requests, kind, namespace, selector=label_selector(kind))

    def _say(self, sentence: str) -> None:
        now_s = self._clock()
        if now_s - self._said.get(sentence, float("-inf")) >= REPEAT_SENTENCE_S:
            self._said = {sentence: now_s}
            _logger.warning("%s", sentence)


def advice(error: KubeError, kind: str) -> str:
    """What to do about a list that fails."""
    described = KINDS[kind]
    what = f"{described.plural} ({described.api_version})"
    if error.absent:
        crds = "kubectl apply --server-side -f crds/"
        return f"the API server does not know {what}: install the CRDs, for instance with `{crds}`; trying again"
    if error.forbidden:
        return f"{error.message}: the operator's role lacks this, compare it with the chart's; trying again"
    if error.status == 401:
        return f"the API server does not accept the operator's token: {error.message}; trying again"
    return f"{what} cannot be listed: {error.message}; trying again"
