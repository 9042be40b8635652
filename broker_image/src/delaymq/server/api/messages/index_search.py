"""Searches in the key index that hold nobody up: a key that a million messages have is a chain of a million entries."""

from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from delaymq.server.time_slices import TimeSlices
    from delaymq.store.message_store import MessageStore

MAX_STEPS: Final = 50_000
"""Of 64 entries each: some 10 s of the loop's time in turns, and then what was found is all that is told."""
EVER_MS: Final = 1 << 53


async def search_index(
    store: "MessageStore",
    topic: str,
    key: str,
    limit: int,
    slices: "TimeSlices",
    begin_ms: int = 0,
    end_ms: int = EVER_MS,
) -> list[int]:
    """Physical offsets of at most `limit` records that may have `key`, the newest first."""
    found: list[int] = []
    for offset in islice(store.index_steps(topic, key, begin_ms, end_ms), MAX_STEPS):
        await slices.checkpoint()
        if offset is not None:
            found.append(offset)
            if len(found) >= limit:
                break
    return found
