"""Scheduling of delayed messages: which are due, in what order, and how many per step.

This package is pure: it accesses no store, no clock and no files. Its input is times and offsets, its output numbers.
The content of records in the schedule topic, and their delivery, belong to `broker.delivery`.

Invariants: messages of one topic are taken in the order of their due times, and in the order of the log if these are
equal; the memory for pending messages is bounded.
"""

from delaymq.schedule.ranges import OffsetRanges
from delaymq.schedule.retries import Backoff, RetryQueue
from delaymq.schedule.scheduler import DueSource, Entry, Lane, Scheduler
from delaymq.schedule.settled import Settled

__all__ = [
    "Backoff",
    "DueSource",
    "Entry",
    "Lane",
    "OffsetRanges",
    "RetryQueue",
    "Scheduler",
    "Settled",
]
