"""Work for many at once, in slices: after each one the event loop looks at what others want."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator

_logger = logging.getLogger(__name__)


class SlicedWork:
    """Pieces of work that take turns. Each is a walk in steps, which tell what they cost."""

    def __init__(self, slice_units: int, soon: Callable[[Callable[[], None]], object] | None = None) -> None:
        """A slice ends when it has cost so much. `soon` has something called in the next turn of the loop; None: as
        asyncio does."""
        self._slice_units = slice_units
        self.soon = soon
        self._pieces: deque[Iterator[int]] = deque()
        self._is_working = False

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def begin(self, steps: Iterator[int]) -> None:
        """One more piece; its first slice is done at once if there is no other."""
        self._pieces.append(steps)
        if len(self._pieces) == 1 and not self._is_working:
            self.resume()

    def clear(self) -> None:
        """Drops what is not done."""
        self._pieces.clear()

    def resume(self) -> None:
        """One slice; a piece that is not done with it lets the others go first in the next."""
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
                # The domain answers its own errors; what still gets here is a defect.
                _logger.exception("a walk over many could not be finished")
                pieces.popleft()
        self._is_working = False
        if pieces:
            (self.soon or asyncio.get_running_loop().call_soon)(self.resume)
