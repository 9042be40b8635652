"""Index of pending messages with any due time: bounded memory, sorted runs, and files for the large ones.

Messages are added in the order of the log and taken in the order of their due times, topic by topic. New ones are held
in a table in memory. When it is full, it becomes a *run*: immutable entries, sorted by partition, due time and
identity. Runs of similar size are merged in small steps; the large ones are files. What was delivered is a position in
each part of a run. The log is the authority: an index that is lost or damaged is built again from it.

Like the rest of the package, this one works with numbers and names only. Its files are behind `RunFiles`.
"""

from delaymq.schedule.timeline.entries import Pending
from delaymq.schedule.timeline.files import RunFile, RunFiles, TimelineDamagedError
from delaymq.schedule.timeline.paced import PacedTimeline
from delaymq.schedule.timeline.timeline import TIMELINE_QUEUE, Timeline

__all__ = [
    "TIMELINE_QUEUE",
    "PacedTimeline",
    "Pending",
    "RunFile",
    "RunFiles",
    "Timeline",
    "TimelineDamagedError",
]
