"""Messages with a delay level, and messages that a kernel stored, in the index of pending messages.

The identity of a message is the place of its first record. A record that carries it forward states both in its mark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from delaymq.broker.delivery.reader import Place, ScheduleReader
from delaymq.message import names
from delaymq.message.errors import NewerFormError
from delaymq.message.levels import level_of_queue
from delaymq.message.marks import parse_due
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMark, TimedMarkKind, corrected, parse_own_mark
from delaymq.schedule import Settled
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.entries import ENTRY
from delaymq.store.consume_queue import BLANK_SIZE
from delaymq.store.model import Dispatched
from delaymq.store.plain_runs import SentDelay

UNKNOWN_TOPIC: Final = "?"
"""Topic of entries that were added from the queue alone, whose records have not been read. No topic has this name."""

_logger = logging.getLogger(__name__)


def carried_from(properties: dict[str, str], queue_id: int, place: int) -> TimedMark | None:
    """Return the mark of the record at `place` in the schedule topic if it carries a message forward; None if not.

    NewerFormError: it states something that only a newer program knows.
    """
    text = properties.get(names.MARK)
    if text is None:
        return None
    mark = parse_own_mark(text, place)
    if mark is None and (mended := corrected(text, place)) is not None:
        mark = parse_own_mark(mended, place)
    if mark is None:
        return None
    if mark.kind is not TimedMarkKind.CARRIED or mark.queue is None or mark.next_due_ms != mark.due_ms:
        raise NewerFormError(f"{text!r} has a form that this program does not know: use the version that wrote it")
    return mark if mark.queue[0] == queue_id else None


def pending_of(index: Timeline, record: Dispatched, mark: TimedMark | None) -> Pending:
    """Return the message that a record of the schedule topic holds; `mark` is the result of `carried_from`."""
    properties, place = record.properties, record.physical_offset
    identity = place if mark is None else mark.identity
    topic, level = properties.get(names.REAL_TOPIC, ""), level_of_queue(record.queue_id)
    number = index.partitions.owner_number(properties.get(names.ACCOUNT, ""))
    partition = index.partitions.number(topic, level=level)
    return Pending(max(record.tags_code, 0), identity, place, record.size, number, partition)


def add_entry(index: Timeline, settled: Settled, record: Dispatched) -> Pending:
    """Add the message of a record that was appended to the schedule topic, and return it. OSError, damage.

    `settled` contains the settled entries of its queue. NewerFormError: see `carried_from`.
    """
    mark = None
    if names.MARK in record.properties:
        mark = carried_from(record.properties, record.queue_id, record.physical_offset)
    entry = pending_of(index, record, mark)
    if mark is not None and mark.queue is not None:
        settled.settle(mark.queue[1])
        if index.taken(mark.identity) is None:
            end_carried(index, mark, UNKNOWN_TOPIC)  # its topic is known now
    index.add(entry)
    return entry


def add_sent(index: Timeline, sent: Sequence[SentDelay], account: str = "") -> None:
    """Add delayed messages of an account that were sent without a group; all even if OSError is raised.

    The account must have a number.
    """
    partitions = index.partitions
    owner = partitions.owner_number(account)
    for topic, queue_id, place, size, due_ms in sent:
        partition = partitions.number(topic, level=level_of_queue(queue_id))
        entry = Pending(due_ms, place, place, size, owner, partition)
        index.count(entry, 1)
        index.hold(entry)
    index.freeze_if_full()


def is_pending(index: Timeline, record: Record) -> bool:
    """Whether the message of a record of the schedule topic is pending, in whatever record. OSError, damage."""
    due_ms = parse_due(record.properties.get(names.DUE, ""), record.queue_id, record.queue_offset)
    return due_ms is not None and _find(index, record, due_ms) is not None


def find_held(index: Timeline, record: Record, due_ms: int) -> Pending | None:
    """Return the pending message that a record of the schedule topic holds. OSError, damage, NewerFormError.

    `due_ms` is the due time of its queue entry.
    """
    pending = _find(index, record, due_ms)
    return pending if pending is not None and pending.record == record.physical_offset else None


def _find(index: Timeline, record: Record, due_ms: int) -> Pending | None:
    properties, queue_id = record.properties, record.queue_id
    mark = carried_from(properties, queue_id, record.physical_offset)
    identity = record.physical_offset if mark is None else mark.identity
    pending = index.taken(identity)
    own_due_ms = parse_due(properties.get(names.DUE, ""), queue_id, record.queue_offset)
    # It was due at `due_ms` by its queue, and given back, if the two differ.
    dues = [due_ms] if own_due_ms is None or own_due_ms == due_ms else [due_ms, own_due_ms]
    for topic in (properties.get(names.REAL_TOPIC, ""), UNKNOWN_TOPIC):
        partition = index.partitions.find(topic, level=level_of_queue(queue_id))
        for each in dues:
            if pending is None and partition is not None:
                pending = index.find(each, identity, partition)
    return pending


def end_carried(index: Timeline, mark: TimedMark, *topics: str) -> None:
    """Remove the message that the record of a mark carries forward, if it has one of these topics. OSError, damage."""
    assert mark.queue is not None
    for each in topics:
        partition = index.partitions.find(each, level=level_of_queue(mark.queue[0]))
        if partition is not None and index.end(mark.due_ms, mark.identity, partition) is not None:
            return


def end_entry(index: Timeline, reader: ScheduleReader, queue_id: int, offset: int) -> None:
    """Remove the message of an entry that was settled otherwise than by its hand-over. OSError, TimelineDamagedError.

    If its record cannot be read, it remains in the index until it is due.
    """
    entry = reader.entry(queue_id, offset)
    record = reader.record(queue_id, offset, Place(*entry[:2])) if entry is not None else None
    if entry is None or record is None:
        return
    pending = find_held(index, record, reader.due_ms(queue_id, offset, entry[2]))
    if pending is not None:
        index.end(pending.due_ms, pending.identity, pending.partition)


def add_entries(
    index: Timeline,
    reader: ScheduleReader,
    queue_id: int,
    settled: Settled,
    first: int,
    end: int,
    source_at: Callable[[int], tuple[str, str]],
    identities: Mapping[int, int],
) -> list[int]:
    """Add the entries from `first` to before `end` that are not settled; return the offsets of those without a record.

    `source_at` returns topic and account of an entry. `identities` contains those that differ from the places of the
    records, by queue offset. OSError, TimelineDamagedError.
    """
    if identities:
        index.freeze()  # the ends of their earlier records must precede them
    partitions, level = index.partitions, level_of_queue(queue_id)
    gone: list[int] = []
    for start, entries in reader.entries(queue_id, first, end):
        rows: dict[int, list[bytes]] = {}
        totals: dict[tuple[int, int], list[int]] = {}
        for offset, (place, size, tags_code) in enumerate(entries, start):
            if offset in settled:
                continue
            if size == BLANK_SIZE or place < reader.min_offset:
                gone.append(offset)
                continue
            topic, account = source_at(offset)
            partition = partitions.number(topic, level=level)
            owner = partitions.owner_number(account)
            due_ms = reader.due_ms(queue_id, offset, tags_code)
            identity = identities.get(offset, place) if identities else place
            rows.setdefault(partition, []).append(ENTRY.pack(due_ms, identity, place, size, owner))
            of_owner = totals.setdefault((partition, owner), [0, 0])
            of_owner[0] += 1
            of_owner[1] += size
            index.holders.count(place, 1)
        if rows:
            index.add_rows(rows, is_plain=not identities)
        for (partition, owner), (messages, size) in totals.items():
            partitions.count(partition, owner, messages, size)
        try:
            while index.maintain():
                pass
        except OSError as error:
            _logger.warning("runs of the timeline cannot be merged during the start: %s", error)
    return gone


def add_missing(index: Timeline, reader: ScheduleReader, queue_id: int, settled: Settled, end: int) -> int:
    """Add the entries that are neither settled nor in the index; return their number. OSError, TimelineDamagedError.

    This reads all pending records of a queue. It is a safeguard: the queue decides which messages are pending.
    """
    added, level = 0, level_of_queue(queue_id)
    for start, entries in reader.entries(queue_id, settled.low, end):
        for offset, (place, size, tags_code) in enumerate(entries, start):
            if offset in settled or size == BLANK_SIZE or place < reader.min_offset:
                continue
            record = reader.record(queue_id, offset, Place(place, size))
            due_ms, identity = reader.due_ms(queue_id, offset, tags_code), place
            topic, account = UNKNOWN_TOPIC, ""
            if record is not None:
                if _find(index, record, due_ms) is not None:
                    continue
                properties = record.properties
                mark, topic = carried_from(properties, queue_id, place), properties.get(names.REAL_TOPIC, "")
                identity, account = place if mark is None else mark.identity, properties.get(names.ACCOUNT, "")
            partition = index.partitions.number(topic, level=level)
            owner = index.partitions.owner_number(account)
            index.add(Pending(due_ms, identity, place, size, owner, partition))
            added += 1
    return added
