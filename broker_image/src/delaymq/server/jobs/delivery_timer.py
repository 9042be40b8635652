"""Timer of the delivery: runs it when a message is due, and sleeps until then."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from delaymq.server.jobs.clock_guard import ClockGuard

BATCH: Final = 64
"""Messages delivered per time slice of some 2 ms, so that many due messages do not starve producers."""
MAX_SLEEP_MS: Final = 1_000
"""Due times use the wall clock, sleeping does not; a clock step is noticed within this time."""
RETRY_S: Final = 1.0

_logger = logging.getLogger(__name__)


class TimedDelivery(Protocol):
    """The part of the delivery that the timer uses."""

    on_wakeup_earlier: Callable[[], None] | None

    def next_wakeup_ms(self) -> int | None:
        """Return the next due time by the wall clock; None: no pending messages."""


class DeliveryTimer:
    """Calls `hand_over(now_ms, budget)` whenever messages are due."""

    def __init__(
        self,
        delivery: TimedDelivery,
        hand_over: Callable[[int, int], int],
        now_ms: Callable[[], int],
        clock_step_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`clock_step_ms` returns the smallest step of the clock after which deliveries wait; 0 for none."""
        self._delivery = delivery
        self._hand_over = hand_over
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None
        self._runs_soon = False
        self._stopped = False
        self.guard = ClockGuard(clock_step_ms)
        """Holds deliveries after the clock was set forward."""
        self.wakeups = 0

    def start(self) -> None:
        """Start; overdue messages are delivered immediately."""
        self._delivery.on_wakeup_earlier = self.wake
        self.wake()

    def stop(self) -> None:
        """Stop; nothing is delivered any more."""
        self._stopped = True
        self._delivery.on_wakeup_earlier = None
        if self._handle is not None:
            self._handle.cancel()

    def wake(self) -> None:
        """Check again soon, because a message may be due earlier than expected."""
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
            hold_s = self.guard.hold_s(self._now_ms(), self._loop.time())
            if hold_s > 0:
                self._sleep(min(hold_s, MAX_SLEEP_MS / 1_000))
                return
            if due_ms is not None and due_ms <= self._now_ms():
                self._hand_over(self._now_ms(), BATCH)
                due_ms = self._delivery.next_wakeup_ms()
        except Exception:
            _logger.exception("the delivery failed, retrying in %g s", RETRY_S)
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
