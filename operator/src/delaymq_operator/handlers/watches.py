"""The kopf handlers, a few lines each: they put events into the cache and release deleted resources."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import kopf

from delaymq_operator.adapters.kinds import KINDS, WATCHED_KINDS
from delaymq_operator.controller.cache import WatchCache
from delaymq_operator.controller.controller import FIRST_BACKOFF_S, Controller, Release
from delaymq_operator.reconcile.context import Key
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable, KubeError

MAX_WAIT_S: Final = 60.0
"""Maximum interval between attempts to release a resource, since a user is waiting for its deletion."""

Listed = Callable[[], None]
"""Called when a watch lists: after a restarted watch, deletions in the meantime are not reported."""

_logger = logging.getLogger(__name__)


def register(
    registry: kopf.OperatorRegistry,
    cache: WatchCache,
    controller: Controller,
    releases: Mapping[str, Release],
    listed: Listed,
) -> None:
    """Add all handlers to `registry`. `releases`: kind → work before its finalizer is removed."""
    for name in WATCHED_KINDS:
        kind = KINDS[name]
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"watch-{kind.plural}")(
            _watcher(name, cache, listed)
        )
    for name, release in releases.items():
        kind = KINDS[name]
        kopf.on.delete(kind.group, kind.version, kind.plural, registry=registry, id="release")(
            _releaser(name, controller, release)
        )


def _watcher(kind: str, cache: WatchCache, listed: Listed) -> Callable[..., Awaitable[None]]:
    async def watch(event: Mapping[str, Any], **_: Any) -> None:
        found = event["object"]
        if event["type"] == "DELETED":
            cache.remove(kind, found)
            return
        from_list = event["type"] is None
        if from_list:
            listed()
        cache.put(kind, found, event=not from_list)

    return watch


def _releaser(kind: str, controller: Controller, release: Release) -> Callable[..., Awaitable[None]]:
    async def release_resource(namespace: str | None, name: str, retry: int, **_: Any) -> None:
        key = Key(kind, namespace or "", name)
        backoff_s = min(MAX_WAIT_S, FIRST_BACKOFF_S * 2 ** min(retry, 10))
        try:
            async with controller.alone(key):
                waiting = await release(key)
        except (KubeError, BrokerUnreachable, BrokerRefused, TimeoutError) as error:
            _logger.warning("finalizer of %s cannot be removed yet: %s; retrying in %.0f s", key, error, backoff_s)
            raise kopf.TemporaryError(str(error), delay=backoff_s) from None
        if waiting is not None:
            delay_s = min(MAX_WAIT_S, max(waiting.requeue_after_s, FIRST_BACKOFF_S))
            _logger.info(
                "finalizer of %s has not been removed yet: %s; retrying in %.0f s", key, waiting.message, delay_s
            )
            raise kopf.TemporaryError(waiting.message, delay=delay_s)

    return release_resource
