"""Ends of a stream's batches: the end of the log, or a record's end after about a given number of bytes."""

from __future__ import annotations

from typing import Final

from delaymq_spark.planning.parts import Planner
from delaymq_spark.store.segments import StorePath, list_segments

_LOOK_BACK_BYTES: Final = 8 << 20
"""Approximate distance before the known end at which the search for a new end starts: a crash may truncate the log."""


def find_log_end(path: StorePath, look_from: int | None = None) -> tuple[int, int | None]:
    """Return the physical offset after the last complete record, and the start of a nearby earlier record, if any.

    `look_from`: such a start from an earlier call, so that only new records are scanned. StorePathError.
    """
    listing = list_segments(path)
    if listing.end is not None:
        return max(listing.start, listing.end), None
    planner = Planner(str(path), _LOOK_BACK_BYTES)
    for number, info in reversed(list(enumerate(listing.segments))):
        if look_from is not None and info.end <= look_from:
            break
        found = planner.last_segment(info, listing.segments[:number], look_from or 0)
        if found is not None:
            parts, end = found
            return end, parts[-1].start
    # The records at that place no longer exist.
    return (listing.start, None) if look_from is None else find_log_end(path)


def find_batch_end(path: StorePath, start: int, about_bytes: int, end: int) -> int:
    """Return the end of a record about `about_bytes` after `start` (the end of another record), at most `end`.

    Never returns `start` while `end` is greater: a batch contains at least one record. StorePathError.
    """
    wished = start + about_bytes
    if wished >= end:
        return end
    segments = list_segments(path).segments
    info = next((each for each in segments if each.end > wished), None)
    if info is None:
        return end
    found = info.base if info.base >= wished else Planner(str(path), about_bytes).record_near(info, start, wished)
    if found is None:
        # No record in the later part of the segment is in a consume queue: the whole segment forms one batch.
        found = info.base if info.base > start else info.end
    return min(found, end)
