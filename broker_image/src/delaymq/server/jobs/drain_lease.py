"""The lease of a drain: what holds producers off ends by itself when whoever asked for it is gone."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from delaymq.broker.admin.drain import DrainMode

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

_logger = logging.getLogger(__name__)


class DrainLease:
    """Changes the drain of one broker and times its lease. `register_soon` has all NameServers told."""

    def __init__(self, broker: "Broker", register_soon: Callable[[], None]) -> None:
        self._broker = broker
        self._register_soon = register_soon
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, mode: DrainMode, lease_ms: int) -> None:
        """Begins, renews or ends a drain; what changes in the routes is registered at once."""
        self.stop()
        if mode is not self._broker.drain.mode:
            _logger.info("drain: %s", "ended, writes are taken" if mode is DrainMode.NONE else mode)
        if self._broker.set_drain(mode, lease_ms):
            self._register_soon()
        if mode is not DrainMode.NONE:
            # Monotonic time: a step of the clock neither ends a drain nor prolongs it.
            self._timer = self._loop.call_later(lease_ms / 1000, self._ended)

    def stop(self) -> None:
        """No timer runs any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ended(self) -> None:
        _logger.warning("drain: its lease ended without a renewal")
        self.set(DrainMode.NONE, 0)
