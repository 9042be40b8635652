"""A value as of the durable end of the log, which survives a loss of power and a change of the master."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Moment = TypeVar("Moment")


class Durable(Protocol):
    """Log with its end offsets, which are physical offsets."""

    @property
    def end_offset(self) -> int: ...

    @property
    def durable_offset(self) -> int: ...


class DurableValue(Generic[Moment]):
    """The newest result of `now()` at a time up to which the log is durable."""

    def __init__(self, log: Durable, now: Callable[[], Moment], at_start: Moment) -> None:
        self._log = log
        self._now = now
        self._effective = at_start
        self._next: tuple[int, Moment] | None = None

    def advance(self) -> Moment:
        """Return the newest durable value; the initial value until the log is durable up to the first one."""
        if self._next is not None and self._log.durable_offset >= self._next[0]:
            self._effective = self._next[1]
            self._next = None
        if self._next is None:
            self._next = self._log.end_offset, self._now()
            if self._log.durable_offset >= self._next[0]:
                self._effective = self._next[1]
        return self._effective
