"""Copies to the mapped log that a kill interrupts."""

from __future__ import annotations

from typing import Any


class KilledError(BaseException):
    """The process is killed."""


class Killed:
    """A mapping whose process is killed after some bytes of a copy. As in the C library, the first ones are last."""

    def __init__(self, mapping: Any, copies: int, count: int) -> None:
        self._mapping, self._left, self._count = mapping, copies, count

    def __setitem__(self, part: slice, data: Any) -> None:
        self._left -= 1
        if self._left:
            self._mapping[part] = data
            return
        start, stop = min(part.start + 64, part.stop), min(part.start + self._count, part.stop)
        self._mapping[start:stop] = data[start - part.start : stop - part.start]
        raise KilledError
