"""Long work on the event loop in time slices, with other requests in between."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator

_logger = logging.getLogger(__name__)


class SlicedWork:
    """Round-robin scheduler of work items, each an iterator over the costs of its steps."""

    def __init__(self, slice_units: int, soon: Callable[[Callable[[], None]], object] | None = None) -> None:
        """A time slice ends after `slice_units`. `soon` schedules a call for the next loop iteration; None: asyncio's
        call_soon."""
        self._slice_units = slice_units
        self.soon = soon
        self._pieces: deque[Iterator[int]] = deque()
        self._is_working = False

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def begin(self, steps: Iterator[int]) -> None:
        """Add a work item; if it is the only one, run its first slice immediately."""
        self._pieces.append(steps)
        if len(self._pieces) == 1 and not self._is_working:
            self.resume()

    def clear(self) -> None:
        """Drop all unfinished work."""
        self._pieces.clear()

    def resume(self) -> None:
        """Run one slice; an unfinished item moves to the end."""
        self._is_working = True
        left = self._slice_units
        pieces = self._pieces
        while pieces and left > 0:
            try:
                for units in pieces[0]:
                    left -= units
                    if left <= 0:
                        pieces.rotate(-1)
                        break
                else:
                    pieces.popleft()
            except Exception:
                # The domain handles its own errors, so this is a defect.
                _logger.exception("time-sliced work failed")
                pieces.popleft()
        self._is_working = False
        if pieces:
            (self.soon or asyncio.get_running_loop().call_soon)(self.resume)
