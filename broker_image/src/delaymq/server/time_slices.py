"""Cooperative yielding: a long walk over tables gives the event loop back after each time slice."""

import asyncio
import time
from typing import Final

SLICE_S: Final = 0.002
"""How long a walk through tables holds the loop before others have their turn."""


class TimeSlices:
    """The time slices of one walk over tables, which may change between two of them."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._slice_s = slice_s
        self._until = time.monotonic() + slice_s

    async def checkpoint(self) -> None:
        """To be called between two steps that take far less than a turn."""
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + self._slice_s
