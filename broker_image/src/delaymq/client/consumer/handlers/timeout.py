"""Timeouts of handlers: their messages are sent back, so that the queue's offset advances."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from delaymq.client.consumer.handlers.calls import Run, all_shown
from delaymq.client.consumer.handlers.retries import Retries
from delaymq.client.consumer.stats.consumer_stats import Tally
from delaymq.client.core.background import Background
from delaymq.client.options import PushConsumerOptions

CHECKS_PER_TIMEOUT = 15
"""Number of checks per consume timeout: an overdue handler is found at most 1/15 later."""

_logger = logging.getLogger(__name__)


class HandlerTimeout:
    """Checks `runs`, the running handlers, periodically. Without `retries`, overdue messages count as consumed."""

    def __init__(
        self, runs: Collection[Run], retries: Retries | None, options: PushConsumerOptions, tally: Tally
    ) -> None:
        self._runs = runs
        self._retries = retries
        self._limit_ms = options.consume_timeout_ms
        self._ordered = options.ordered
        self._tally = tally

    def start(self, background: Background) -> None:
        """Start checking."""
        background.every(max(self._limit_ms // CHECKS_PER_TIMEOUT, 1), self._check_runs)

    async def _check_runs(self) -> None:
        before_s = asyncio.get_running_loop().time() - self._limit_ms / 1000
        for run in [run for run in self._runs if run.began_s <= before_s]:
            if run.ended:
                continue  # it may have ended while earlier ones were sent back
            if not run.warned:
                run.warned = True
                _logger.warning(
                    "the handler of %s has been running for more than %d ms", all_shown(run.messages), self._limit_ms
                )
            if self._ordered:
                continue  # later messages must not be handled before it
            run.abandoning = asyncio.Event()
            try:
                await self._abandon(run)
            finally:
                run.abandoning.set()
                run.abandoning = None

    async def _abandon(self, run: Run) -> None:
        for _, message in run.kept:
            if run.reader.dropped or (self._retries is not None and not await self._retries.send_back(message)):
                return  # the next check tries again
            run.abandoned.add(message.queue_offset)
            self._tally.failed([message])
            run.reader.finish([message])
