"""Messages with a delay level in the index of pending messages. Their identities are the places of their records."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from delaymq.broker.delivery.reader import Place, ScheduleReader
from delaymq.message import names
from delaymq.message.levels import level_of_queue
from delaymq.message.marks import parse_due
from delaymq.schedule import Settled
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.entries import ENTRY
from delaymq.store.consume_queue import BLANK_SIZE
from delaymq.store.model import Dispatched

UNKNOWN_TOPIC: Final = "?"
"""Topic of entries that were added from the queue alone, whose records have not been read. No topic has this name."""

_logger = logging.getLogger(__name__)


def pending_of(index: Timeline, record: Dispatched) -> Pending:
    """Return the message that a record of the schedule topic holds."""
    properties, place = record.properties, record.physical_offset
    topic, level = properties.get(names.REAL_TOPIC, ""), level_of_queue(record.queue_id)
    account = properties.get(names.ACCOUNT)
    number = index.partitions.account_number(account) if account else 0
    partition = index.partitions.number(topic, level=level)
    return Pending(max(record.tags_code, 0), place, place, record.size, number, partition)


def end_entry(index: Timeline, reader: ScheduleReader, queue_id: int, offset: int) -> None:
    """Remove the message of an entry that was settled otherwise than by its hand-over. OSError, TimelineDamagedError.

    If its record cannot be read, it may remain in the index until it is due.
    """
    entry = reader.entry(queue_id, offset)
    if entry is None:
        return
    place, size, tags_code = entry
    level = level_of_queue(queue_id)
    dues, topics = [reader.due_ms(queue_id, offset, tags_code)], [UNKNOWN_TOPIC]
    record = reader.record(queue_id, offset, Place(place, size))
    if record is not None:
        properties = record.properties
        topics.insert(0, properties.get(names.REAL_TOPIC, ""))
        own_due_ms = parse_due(properties.get(names.DUE, ""), queue_id, offset)
        if own_due_ms is not None and own_due_ms != dues[0]:
            dues.append(own_due_ms)  # it was due then by its queue, and given back
    for topic in topics:
        partition = index.partitions.find(topic, level=level)
        for due_ms in dues if partition is not None else ():
            if index.end(due_ms, place, partition) is not None:
                return


def add_entries(
    index: Timeline,
    reader: ScheduleReader,
    queue_id: int,
    settled: Settled,
    first: int,
    end: int,
    topic_at: Callable[[int], str],
) -> list[int]:
    """Add the entries from `first` to before `end` that are not settled; return the offsets of those without a record.

    `topic_at` returns the topic of an entry. OSError, TimelineDamagedError.
    """
    partitions, level = index.partitions, level_of_queue(queue_id)
    gone: list[int] = []
    for start, entries in reader.entries(queue_id, first, end):
        rows: dict[int, list[bytes]] = {}
        record_bytes: dict[int, int] = {}
        for offset, (place, size, tags_code) in enumerate(entries, start):
            if offset in settled:
                continue
            if size == BLANK_SIZE or place < reader.min_offset:
                gone.append(offset)
                continue
            partition = partitions.number(topic_at(offset), level=level)
            due_ms = reader.due_ms(queue_id, offset, tags_code)
            rows.setdefault(partition, []).append(ENTRY.pack(due_ms, place, place, size, 0))
            record_bytes[partition] = record_bytes.get(partition, 0) + size
        if rows:
            index.add_rows(rows, is_plain=True)
        for partition, size in record_bytes.items():
            partitions.count(partition, 0, len(rows[partition]), size)
        try:
            while index.maintain():
                pass
        except OSError as error:
            _logger.warning("runs of the timeline cannot be merged during the start: %s", error)
    return gone
