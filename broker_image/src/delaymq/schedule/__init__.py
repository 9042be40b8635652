"""Scheduling of delayed messages: which are due, in what order, and how many per step.

This package is pure: it accesses no store, no clock and no files. Its input is times and offsets, its output numbers.
The content of records in the schedule topic, and their delivery, belong to `broker.delivery`.

Invariants: a settled entry is never taken; entries of one queue are taken in the order of their due times, and in queue
order if these are equal; a pending entry takes numbers in an array, never an object.
"""

from delaymq.schedule.level_queue import LevelQueue
from delaymq.schedule.paced_queue import PacedQueue
from delaymq.schedule.ranges import OffsetRanges
from delaymq.schedule.retries import Backoff, RetryQueue
from delaymq.schedule.scheduler import DueSource, Entry, Lane, Scheduler
from delaymq.schedule.settled import Settled

__all__ = [
    "Backoff",
    "DueSource",
    "Entry",
    "Lane",
    "LevelQueue",
    "OffsetRanges",
    "PacedQueue",
    "RetryQueue",
    "Scheduler",
    "Settled",
]
