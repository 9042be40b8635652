"""Search of the key index in time slices, because a key of a million messages is a chain of a million entries."""

from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from delaymq.server.time_slices import TimeSlices
    from delaymq.store.message_store import MessageStore

MAX_STEPS: Final = 50_000
"""Maximum steps of 64 entries each, some 10 s of the loop's time in total; then the results so far are returned."""
END_OF_TIME_MS: Final = 1 << 53


async def search_index(
    store: "MessageStore",
    topic: str,
    key: str,
    limit: int,
    slices: "TimeSlices",
    begin_ms: int = 0,
    end_ms: int = END_OF_TIME_MS,
) -> list[int]:
    """Return the physical offsets of at most `limit` records that may have `key`, newest first."""
    found: list[int] = []
    for offset in islice(store.index_steps(topic, key, begin_ms, end_ms), MAX_STEPS):
        await slices.yield_if_due()
        if offset is not None:
            found.append(offset)
            if len(found) >= limit:
                break
    return found
