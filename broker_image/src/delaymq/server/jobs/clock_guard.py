"""Detection of a wall clock that was set forward, by comparison with the monotonic clock.

Messages that are due by a wrong clock cannot be called back. Deliveries therefore wait for a while, in which a time
service or an administrator may set the clock back.
"""

import logging
from collections.abc import Callable
from typing import Final

HOLD_S: Final = 30.0
"""Time for which deliveries wait after a step."""

_logger = logging.getLogger(__name__)


class ClockGuard:
    """Compares both clocks at each call of `hold_s`."""

    def __init__(self, step_ms: Callable[[], int]) -> None:
        """`step_ms` returns the smallest step, in ms, that counts; 0 for none."""
        self._step_ms = step_ms
        self._last: tuple[int, float] | None = None
        self._held_until_s: float | None = None
        self._stepped_ms = 0
        self.steps = 0
        """Number of steps since the start."""

    @property
    def is_holding(self) -> bool:
        """Whether deliveries wait because of a step."""
        return self._held_until_s is not None

    def hold_s(self, wall_ms: int, monotonic_s: float) -> float:
        """Return the time in s for which deliveries still have to wait; 0 if they need not wait."""
        last, self._last = self._last, (wall_ms, monotonic_s)
        drift_ms = 0 if last is None else round(wall_ms - last[0] - (monotonic_s - last[1]) * 1_000)
        least_ms = self._step_ms()
        if least_ms and drift_ms >= least_ms:
            self.steps += 1
            self._stepped_ms += drift_ms
            self._held_until_s = monotonic_s + HOLD_S
            _logger.error(
                "the clock was set forward by %.1f s (timerClockStepMs): deliveries of delayed messages wait %d s, so"
                " that it can be set back",
                drift_ms / 1_000,
                HOLD_S,
            )
        elif self._held_until_s is not None and drift_ms * 2 <= -self._stepped_ms:
            _logger.info("the clock was set back: deliveries of delayed messages continue")
            self._end()
        if self._held_until_s is None:
            return 0.0
        if monotonic_s >= self._held_until_s or not least_ms:
            _logger.warning("the clock was not set back: deliveries of delayed messages continue by the new time")
            self._end()
            return 0.0
        return self._held_until_s - monotonic_s

    def _end(self) -> None:
        self._held_until_s = None
        self._stepped_ms = 0
