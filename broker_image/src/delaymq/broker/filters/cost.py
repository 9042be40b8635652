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
CHARACTERS_PER_UNIT: Final = 256
"""Reading so many takes as long as making the code of one comparison: some 60 µs."""
WORK_PER_WINDOW: Final = 128
"""Units after which no further expression is compiled in a window: nearly as much as the largest one, some 8 ms."""
SHARE_OF_ONE: Final = WORK_PER_WINDOW // 4
"""The same for one connection. What is spent beyond either is taken from the windows that follow."""
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
    """What new expressions of peers have cost lately: a fifth of the loop's time at most, and a quarter of that by one.

    Half of each window is kept for connections that have spent nothing lately: who brings one expression after the
    other, from however many connections, waits for those who come with their first.
    """

    __slots__ = ("_began_ms", "_now_ms", "_of_one", "_spent")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._began_ms = 0
        self._spent = 0
        self._of_one: dict[int, int] = {}
        """By connection: what it still owes."""

    def begin(self, asker: int) -> None:
        """Before one is compiled for a connection. NotNowError: not in this window."""
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
        """One was compiled, or found to be wrong: then it has no comparisons."""
        units = 1 + comparisons + len(text) // CHARACTERS_PER_UNIT
        self._spent += units
        self._of_one[asker] = self._of_one.get(asker, 0) + units
