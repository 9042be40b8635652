"""What SQL expressions cost: the memory of those that are kept, and the work of new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError

COMPARISON_BYTES: Final = 1_024
"""Generated code of one comparison, at most."""
CHARACTER_BYTES: Final = 16
"""Of one character: the text itself, and the constants that it becomes. Short strings in a list cost most."""
CHARACTERS_A_UNIT: Final = 256
"""Reading so many takes as long as making the code of one comparison: some 60 µs."""
WORK_A_WINDOW: Final = 128
"""Units after which no further expression is compiled in a window: as much as the largest one, some 8 ms."""
WINDOW_MS: Final = 40

T = TypeVar("T")


def bytes_of(text: str, comparisons: int) -> int:
    """What a compiled expression takes, rather too much than too little."""
    return len(text) * CHARACTER_BYTES + (comparisons + 1) * COMPARISON_BYTES


class Compiled(Generic[T]):
    """What came of expressions by their texts, within so many bytes: what was not asked for the longest goes first."""

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._kept: dict[str, tuple[T, int]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, text: str) -> T | None:
        """What is kept for a text."""
        found = self._kept.pop(text, None)
        if found is None:
            return None
        self._kept[text] = found
        return found[0]

    def put(self, text: str, compiled: T, bytes_taken: int) -> None:
        """Keeps it, and forgets others if that is too much."""
        self.bytes += bytes_taken
        self._kept[text] = compiled, bytes_taken
        while self.bytes > self._max_bytes and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            self.bytes -= self._kept.pop(oldest)[1]


class NotNowError(RequestError):
    """Too many new expressions at once: others must not wait for all of them."""

    def __init__(self) -> None:
        super().__init__(
            ResponseCode.SYSTEM_BUSY, "too many new SQL92 expressions at once: ask again, or use fewer different ones"
        )


class CompileWork:
    """What new expressions of peers have cost lately."""

    __slots__ = ("_began_ms", "_now_ms", "_spent")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._began_ms = 0
        self._spent = 0

    def begin(self) -> None:
        """Before one is compiled. NotNowError: not in this window."""
        now_ms = self._now_ms()
        if abs(now_ms - self._began_ms) >= WINDOW_MS:
            self._began_ms = now_ms
            self._spent = 0
        if self._spent >= WORK_A_WINDOW:
            raise NotNowError

    def spend(self, text: str, comparisons: int) -> None:
        """One was compiled, or found to be wrong."""
        self._spent += 1 + comparisons + len(text) // CHARACTERS_A_UNIT
