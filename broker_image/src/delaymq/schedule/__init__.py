"""Scheduling of delayed messages: which are due, in what order, and how many per step.

Pure: no store, no clock, no IO; times and offsets come in, numbers go out. What a record of the schedule topic says,
and how it is handed over, is `broker.delivery`.

Invariants: an entry that is settled is never given out; among the entries of one queue an earlier due time goes first,
and equal due times keep the queue's order; a pending entry costs numbers in an array, never an object of its own.
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
