"""Cooperative yielding: a long iteration over tables yields to the event loop after each time slice."""

import asyncio
import time
from typing import Final

SLICE_S: Final = 0.002
"""Duration of a time slice."""


class TimeSlices:
    """Time slices of one iteration over tables, which may change between slices."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._slice_s = slice_s
        self._until = time.monotonic() + slice_s

    async def yield_if_due(self) -> None:
        """Yield if the time slice is over; call it between steps that take much less than a time slice."""
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + self._slice_s
