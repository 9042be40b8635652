"""Search for queue entries by time."""

from __future__ import annotations

from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import BLANK_SIZE, ConsumeQueue, ConsumeQueues


def store_time_of(log: CommitLog, queues: ConsumeQueues, queue: ConsumeQueue, number: int) -> int | None:
    """Return the store time in ms of the record that entry `number` names; None if it no longer exists."""
    entry = queues.entry(queue, number)
    if entry is None or entry[1] == BLANK_SIZE or entry[0] < log.min_offset:
        return None
    return log.store_timestamp_at(entry[0])


def offset_by_time(log: CommitLog, queues: ConsumeQueues, queue: ConsumeQueue, timestamp_ms: int) -> int:
    """Return the first entry stored at `timestamp_ms`, else the nearer one of its neighbours; 0 for an empty queue.

    RocketMQ's broker returns the same, but searches only the file that its modification time suggests, not the queue.
    """
    first, end = queues.bounds(queue, log.min_offset)
    if first >= end:
        return first
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        number, time_ms = middle, None
        while number < high and (time_ms := store_time_of(log, queues, queue, number)) is None:
            number += 1
        if time_ms is None or time_ms >= timestamp_ms:
            high = middle
        else:
            low = number + 1
    if low >= end:
        return end - 1
    right_ms = store_time_of(log, queues, queue, low)
    if low == first or right_ms == timestamp_ms or right_ms is None:
        return low
    left_ms = store_time_of(log, queues, queue, low - 1)
    if left_ms is not None and timestamp_ms - left_ms <= right_ms - timestamp_ms:
        return low - 1
    return low
