"""Lease of a drain, after which the drain ends automatically unless it is renewed."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from delaymq.broker.admin.drain import DrainMode

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

_logger = logging.getLogger(__name__)


class DrainLease:
    """Changes the drain of one broker and times its lease; `register_soon` updates all NameServers."""

    def __init__(self, broker: "Broker", register_soon: Callable[[], None]) -> None:
        self._broker = broker
        self._register_soon = register_soon
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, mode: DrainMode, lease_ms: int) -> None:
        """Start, renew or end a drain, and register changed routes immediately."""
        self.stop()
        if mode is not self._broker.drain.mode:
            _logger.info("drain: %s", "ended, writes are accepted" if mode is DrainMode.NONE else mode)
        if self._broker.set_drain(mode, lease_ms):
            self._register_soon()
        if mode is not DrainMode.NONE:
            # Monotonic time, so that a clock step neither ends nor prolongs a drain.
            self._timer = self._loop.call_later(lease_ms / 1000, self._ended)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ended(self) -> None:
        _logger.warning("drain: the lease expired without a renewal")
        self.set(DrainMode.NONE, 0)
