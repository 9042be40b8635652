"""The delivery's clock: runs it when something is due, and sleeps until then."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

BATCH: Final = 64
"""Messages handed over before sockets get their turn again: some 2 ms, so a due crowd does not starve producers."""
MAX_SLEEP_MS: Final = 1_000
"""Due times are the wall clock's and sleeping is not: a stepped clock is noticed within this time."""
RETRY_S: Final = 1.0

_logger = logging.getLogger(__name__)


class TimedDelivery(Protocol):
    """The part of the delivery that the clock needs."""

    on_wakeup_earlier: Callable[[], None] | None

    def next_wakeup_ms(self) -> int | None:
        """When something is due next, by the wall clock; None: nothing pends."""


class DeliveryTimer:
    """Calls `hand_over(now_ms, budget)` whenever the delivery has something due."""

    def __init__(
        self, delivery: TimedDelivery, hand_over: Callable[[int, int], int], now_ms: Callable[[], int]
    ) -> None:
        self._delivery = delivery
        self._hand_over = hand_over
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None
        self._runs_soon = False
        self._stopped = False
        self.wakeups = 0

    def start(self) -> None:
        """Begins; what is overdue goes out at once."""
        self._delivery.on_wakeup_earlier = self.wake
        self.wake()

    def stop(self) -> None:
        """Ends; nothing is handed over any more."""
        self._stopped = True
        self._delivery.on_wakeup_earlier = None
        if self._handle is not None:
            self._handle.cancel()

    def wake(self) -> None:
        """Looks again soon: something may be due earlier than was known."""
        if self._stopped or self._runs_soon:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._runs_soon = True
        self._handle = self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._runs_soon = False
        self._handle = None
        if self._stopped:
            return
        self.wakeups += 1
        try:
            due_ms = self._delivery.next_wakeup_ms()
            if due_ms is not None and due_ms <= self._now_ms():
                self._hand_over(self._now_ms(), BATCH)
                due_ms = self._delivery.next_wakeup_ms()
        except Exception:
            _logger.exception("the delivery failed, next try in %g s", RETRY_S)
            self._sleep(RETRY_S)
            return
        if due_ms is None or self._runs_soon:
            return
        wait_ms = due_ms - self._now_ms()
        if wait_ms <= 0:
            self.wake()
        else:
            self._sleep(min(wait_ms, MAX_SLEEP_MS) / 1000)

    def _sleep(self, seconds: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._runs_soon = False
        self._handle = self._loop.call_later(seconds, self._run)
