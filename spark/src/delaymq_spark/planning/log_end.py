"""Whether the log reaches a segment.

After damage, the log continues only if a valid record, including its checksum, follows. Otherwise, it ends at the
damage, as it does when a broker starts (docs/formats/store.md, "Recovery").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from delaymq.store.reader import SegmentInfo

from delaymq_spark.scan.walk import Walk, next_sound, sound_at
from delaymq_spark.store.segments import SegmentFile, open_segment


def reaches(file: SegmentFile, info: SegmentInfo, before: Sequence[SegmentInfo], start: int) -> bool:
    """Return whether the log reaches the segment `info`, whose file is open; no later segment has a valid record.

    `before`: the segments before it, in order. `start`: physical offset of a record that is in the log. OSError.
    """
    if holds_sound(file):
        return True
    for previous in reversed(before):
        if previous.end != info.base or not _with(previous, lambda file: is_complete(file, max(file.base, start))):
            return False
        if _with(previous, holds_sound):
            return True
        info = previous
    return True


def holds_sound(file: SegmentFile) -> bool:
    """Return whether the segment has a valid record, including its checksum. OSError."""
    return sound_at(file, 0) is not None or next_sound(file, 0, file.file_bytes, 0)[0] is not None


def is_complete(file: SegmentFile, start: int) -> bool:
    """Return whether valid records lead from physical offset `start` to the end of the segment. OSError.

    Checksums are not verified. Damage that valid records follow is passed over.
    """
    end = file.base + file.file_bytes
    walk = Walk(file, start, end, lambda skipped: None, end)
    for _ in walk.windows():
        pass
    return walk.reached == end


def _with(info: SegmentInfo, look: Callable[[SegmentFile], bool]) -> bool:
    """Return the result of `look`; True if the file cannot be read, so that the rows after it are not lost."""
    try:
        file = open_segment(info)
        try:
            return look(file)
        finally:
            file.close()
    except OSError:
        return True
