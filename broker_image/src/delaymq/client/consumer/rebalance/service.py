"""Computes a member's queues at intervals and after changes; queues/assigned_queues.py takes and reads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from delaymq.client.consumer.rebalance.shares import Share
from delaymq.client.core.background import Background
from delaymq.client.core.client import Client
from delaymq.client.errors import ClientError, ClosedError, NoRouteError
from delaymq.client.options import PushConsumerOptions
from delaymq.client.subscriptions import Subscription

UNSETTLED_PAUSE_MS = 1_000
"""Pause until the next attempt while a topic has no route or brokers do not list this member yet."""
GATHER_CHANGES_MS = 50
"""Time for collecting changes: members join and leave in bursts, and each change alone would move queues
unnecessarily.
"""

_logger = logging.getLogger(__name__)


class ComputesShare(Protocol):
    """Source of this member's queues of a topic; None: not yet known. May raise ClientError: retry later."""

    async def share(self, topic: str) -> Share | None: ...


class AppliesShare(Protocol):
    """Reader of the assigned queues."""

    @property
    def waits_for_locks(self) -> bool:
        """Whether queues still have to be locked, so that the next round comes soon."""
        ...

    async def take(self, subscription: Subscription, share: Share) -> None:
        """Read exactly `share` of the subscription's topic."""
        ...

    async def end_round(self) -> None:
        """Finish a round, in which every subscribed topic with known queues was assigned."""
        ...


class RebalanceService:
    """Runs rounds at least every `rebalance_interval_ms`, and soon after `rebalance_soon`.

    `subscriptions` belong to the consumer and may change at any time.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        options: PushConsumerOptions,
        *,
        subscriptions: Mapping[str, Subscription],
        shares: ComputesShare,
        takes: AppliesShare,
    ) -> None:
        self._client = client
        self._group = group
        self._options = options
        self._subscriptions = subscriptions
        self._shares = shares
        self._takes = takes
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._unannounced = True
        self._unknown: set[str] = set()
        """Topics whose members could not be requested the last time."""

    def start(self, background: Background) -> None:
        """Start with the first round."""
        self._task = background.spawn(self._run())

    async def stop(self) -> None:
        """Stop rebalancing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def rebalance_soon(self) -> None:
        """Run the next round soon."""
        self._changed.set()

    def reannounce(self) -> None:
        """Announce changed subscriptions to brokers before the next round, which comes soon."""
        self._unannounced = True
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                settled = await self._round()
            except Exception:
                _logger.exception("rebalance of %s failed, retrying", self._group)
                settled = False
            pause_ms = self._options.rebalance_interval_ms if settled else UNSETTLED_PAUSE_MS
            if self._takes.waits_for_locks:
                pause_ms = min(pause_ms, self._options.lock_retry_ms)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await self._changed.wait()
            await asyncio.sleep(GATHER_CHANGES_MS / 1000)

    async def _round(self) -> bool:
        """Run a round; return whether the queues of every topic are known."""
        await self._announce()
        settled = True
        for topic in [*self._subscriptions]:
            subscription = self._subscriptions.get(topic)
            if subscription is None:
                continue
            try:
                share = await self._shares.share(topic)
            except ClosedError:
                return True
            except ClientError as error:
                self._log_failure(topic, error)
                self._client.refresh_soon(topic)
                settled = False
                continue
            self._unknown.discard(topic)
            if share is None:
                self._unannounced = True
                settled = False
                continue
            await self._takes.take(subscription, share)
        await self._takes.end_round()
        return settled

    def _log_failure(self, topic: str, error: ClientError) -> None:
        # Retried every second, so one line is enough.
        quiet = isinstance(error, NoRouteError) or topic in self._unknown
        level = logging.DEBUG if quiet else logging.WARNING
        _logger.log(level, "the queues of %s could not be reassigned; keeping the current assignment: %s", topic, error)
        self._unknown.add(topic)

    async def _announce(self) -> None:
        """Announce subscriptions to brokers, which otherwise neither list this member nor create its retry topic."""
        if not self._unannounced:
            return
        self._unannounced = False
        for topic in [*self._subscriptions]:
            try:
                await self._client.route(topic)
            except ClientError:
                continue
        await self._client.heartbeat()
