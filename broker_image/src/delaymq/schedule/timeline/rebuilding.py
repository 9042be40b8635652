"""End of the construction of an index from the whole log."""

from __future__ import annotations

from typing import Final

from delaymq.schedule.timeline.entries import Pending, unpacked
from delaymq.schedule.timeline.timeline import Timeline

_COUNTED_ENTRIES: Final = 8_192


def rebuild_counts(timeline: Timeline) -> None:
    """Merge everything and count it again, after `Timeline.add_unseen` and `end_unseen`. OSError, damage."""
    timeline.compaction.merge_all()
    timeline.reset_counts()
    for run, positions in zip(timeline.runs, timeline.positions(timeline.runs), strict=True):
        for partition, first, end in positions:
            for at in range(first, end, _COUNTED_ENTRIES):
                for row in unpacked(run.read(at, min(_COUNTED_ENTRIES, end - at))):
                    timeline.count(Pending(*row, partition), 1)
