"""Cost of SQL expressions: the memory of cached expressions, and the work of compiling new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError

COMPARISON_BYTES: Final = 1_024
"""Maximum size of the generated code of one comparison."""
CHARACTER_BYTES: Final = 16
"""Memory of one character: the text itself, and the constants derived from it. Short strings in a list cost most."""
CHARACTERS_PER_UNIT: Final = 256
"""Characters whose parsing takes as long as generating the code of one comparison (about 60 µs)."""
WORK_PER_WINDOW: Final = 128
"""Units after which no further expression is compiled in a window. Close to the largest expression, about 8 ms."""
SHARE_OF_ONE: Final = WORK_PER_WINDOW // 4
"""The same for one connection. Work beyond either limit is deducted from the following windows."""
WINDOW_MS: Final = 40

T = TypeVar("T")


def bytes_of(text: str, comparisons: int) -> int:
    """Return the memory of a compiled expression, rather too much than too little."""
    return len(text) * CHARACTER_BYTES + (comparisons + 1) * COMPARISON_BYTES


class Compiled(Generic[T]):
    """Cache of compilation results by text, limited in bytes. The least recently used results are evicted first."""

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._kept: dict[str, tuple[T, int]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, text: str) -> T | None:
        """Return the cached result for a text, or None."""
        found = self._kept.pop(text, None)
        if found is None:
            return None
        self._kept[text] = found
        return found[0]

    def put(self, text: str, compiled: T, bytes_taken: int) -> None:
        """Add a result, and evict others if the limit is exceeded."""
        self.bytes += bytes_taken
        self._kept[text] = compiled, bytes_taken
        while self.bytes > self._max_bytes and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            self.bytes -= self._kept.pop(oldest)[1]


class NotNowError(RequestError):
    """Too many new expressions in a short time; compiling them all would delay other clients."""

    def __init__(self) -> None:
        super().__init__(
            ResponseCode.SYSTEM_BUSY, "too many new SQL92 expressions: retry later, or use fewer different ones"
        )


class CompileWork:
    """Recent work of compiling peers' expressions.

    It takes at most a fifth of the event loop's time, and a quarter of that for each connection. Half of each window is
    reserved for connections without recent work. Clients that submit many expressions, over any number of connections,
    thus wait for those that submit their first one.
    """

    __slots__ = ("_began_ms", "_now_ms", "_of_one", "_spent")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._began_ms = 0
        self._spent = 0
        self._of_one: dict[int, int] = {}
        """Unpaid work by connection."""

    def begin(self, asker: int) -> None:
        """Check that an expression may be compiled for a connection. Raises NotNowError if not in this window."""
        now_ms = self._now_ms()
        windows = abs(now_ms - self._began_ms) // WINDOW_MS
        if windows:
            self._began_ms = now_ms
            self._spent = max(self._spent - windows * WORK_PER_WINDOW, 0)
            paid = windows * SHARE_OF_ONE
            self._of_one = {each: spent - paid for each, spent in self._of_one.items() if spent > paid}
        own = self._of_one.get(asker, 0)
        if own >= SHARE_OF_ONE or self._spent >= (WORK_PER_WINDOW // 2 if own else WORK_PER_WINDOW):
            raise NotNowError

    def spend(self, asker: int, text: str, comparisons: int) -> None:
        """Record an expression that was compiled, or found invalid (then without comparisons)."""
        units = 1 + comparisons + len(text) // CHARACTERS_PER_UNIT
        self._spent += units
        self._of_one[asker] = self._of_one.get(asker, 0) + units
