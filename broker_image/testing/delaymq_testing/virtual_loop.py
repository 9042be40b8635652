"""An event loop whose sleeps take no time: timers fire in their order, and the clock jumps from one to the next."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

REAL_WAIT_S = 5.0
"""A scenario that waits for something that never comes must fail and not hang."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            events = super().select(REAL_WAIT_S)
            if not events:
                raise TimeoutError("nothing is left to wait for")
            return events
        self.now += max(timeout, 0)
        return super().select(0)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return super().get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time starts at 0 and moves only when nothing else is to be done."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def now_ms(self) -> int:
        """The same time as a wall clock of whole milliseconds, which began long ago."""
        return 1_000_000 + int(self._jumping.now * 1000 + 1e-6)


def run_virtually(scenario: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Runs the scenario to its end in no time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(scenario(loop))
