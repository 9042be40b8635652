"""Predicts how RocketMQ's broker would treat the delays of a DelayMQ store (`delaymq store verify --for-rocketmq`).

RocketMQ's broker ignores marks and due times of DelayMQ. For delay levels, it uses only delayOffset.json, the queue
entries and its delay level table. Timed messages are in a topic that is an ordinary one to RocketMQ 4.9. RocketMQ 5 has
no position in it, because it keeps that in files of its own (timerwheel, timerlog, config/timercheck). It therefore
reads the topic from its first entry, and delivers a message whose time has passed immediately.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

from delaymq.message.levels import DelayLevels, level_of_queue
from delaymq.message.marks import parse_mark
from delaymq.message.names import MARK, SCHEDULE_TOPIC
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMark, TimedMarkKind
from delaymq.store.reader import StoreReader
from delaymq.store.tools.timed_messages import TimedMessage, TimedMessages, own_mark

_PAIR = re.compile(rb'"?(\d+)"?\s*:\s*(-?\d+)')


@dataclass(frozen=True, kw_only=True)
class DelayedMessage:
    """One record of the schedule topic."""

    level: int
    queue_offset: int
    physical_offset: int
    due_ms: int
    waits_until_ms: int | None = None
    """Of a late message: latest due time of a pending one before it in the queue."""


@dataclass(kw_only=True)
class Prospect:
    """Consequences of opening the store with RocketMQ's broker now."""

    offsets: dict[int, int]
    """delayOffset.json: level → next entry."""
    repeated: list[DelayedMessage] = field(default_factory=list)
    """Messages that were delivered and would be delivered again."""
    early: list[DelayedMessage] = field(default_factory=list)
    """Messages due later than now plus the delay of their level, which would be delivered immediately."""
    never: list[DelayedMessage] = field(default_factory=list)
    """Pending messages that would be skipped, or whose level is missing from RocketMQ's table."""
    late: list[DelayedMessage] = field(default_factory=list)
    """Pending messages behind one of the same queue that is due later: RocketMQ's broker delivers each queue in its
    order. Messages that were carried forward are at the end of their queue."""
    timed_pending: list[TimedMessage] = field(default_factory=list)
    """Pending timed messages: RocketMQ 4.9 would never deliver them, RocketMQ 5 when they are due."""
    timed_ended: list[TimedMessage] = field(default_factory=list)
    """Timed messages that were delivered, or ended otherwise: RocketMQ 5 would deliver them again."""

    def as_json(self) -> dict[str, object]:
        """Return the prediction for `--json`."""
        return asdict(self)


def prospect_for_rocketmq(path: str | os.PathLike[str], levels: DelayLevels, now_ms: int) -> Prospect:
    """Compare the log's marks with delayOffset.json.

    FileNotFoundError: `path` is not a store. NewerFormError: only a newer program can interpret a record.
    """
    reader = StoreReader(path)
    offsets = _delay_offsets(reader.path)
    settled, timed = _marks(reader)
    # A queue without marks was served by RocketMQ's broker, whose offset is then correct.
    marked_queues = {number for number, _, _ in settled}
    prospect = Prospect(offsets=offsets)
    for each in timed:
        (prospect.timed_pending if each.ended is None else prospect.timed_ended).append(each)
    for topic, queue_id in reader.queues():
        if topic != SCHEDULE_TOPIC:
            continue
        level = level_of_queue(queue_id)
        begin = offsets.get(level, 0)
        latest_ms = 0
        for message in _entries(reader, queue_id, level):
            is_settled = (queue_id, message.queue_offset, message.physical_offset) in settled
            if level not in levels:
                if not is_settled:
                    prospect.never.append(message)
            elif message.queue_offset >= begin:
                if is_settled:
                    prospect.repeated.append(message)
                elif message.due_ms > now_ms + levels.delay_ms(level):
                    prospect.early.append(message)
                else:
                    if message.due_ms < latest_ms:
                        prospect.late.append(replace(message, waits_until_ms=latest_ms))
                    latest_ms = max(latest_ms, message.due_ms)
            elif not is_settled and queue_id in marked_queues:
                prospect.never.append(message)
    return prospect


def _entries(reader: StoreReader, queue_id: int, level: int) -> Iterator[DelayedMessage]:
    first = reader.segments()
    begin = first[0].base if first else 0
    for number, offset, size, code in reader.entries(SCHEDULE_TOPIC, queue_id):
        if size != 2_147_483_647 and offset >= begin:
            yield DelayedMessage(level=level, queue_offset=number, physical_offset=offset, due_ms=code)


def _marks(reader: StoreReader) -> tuple[set[tuple[int, int, int]], TimedMessages]:
    """Return queue id, queue offset and physical offset of settled records of the schedule topic; timed messages."""
    settled = set()
    timed = TimedMessages()
    for record in reader.records():
        timed.take(record)
        if not _has_mark(record):
            continue
        mark = parse_mark(record.properties.get(MARK, ""))
        if mark is not None:
            settled.add((mark.queue_id, mark.queue_offset, mark.physical_offset))
        elif (stated := own_mark(record)) is not None and stated.queue is not None and _ends_entry(stated):
            settled.add((*stated.queue, stated.record))
    return settled, timed


def _ends_entry(mark: TimedMark) -> bool:
    """Whether a mark ends a record of the schedule topic, or the pending message now has another record there."""
    return mark.next_due_ms is None or mark.kind is TimedMarkKind.CARRIED


def _has_mark(record: Record) -> bool:
    return b"__DMQ_MARK\x01" in record.raw_properties


def _delay_offsets(path: str) -> dict[int, int]:
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        try:
            with open(f"{path}/config/{name}", "rb") as file:
                data = file.read()
        except FileNotFoundError:
            continue
        if b"offsetTable" in data:
            return {int(level): int(offset) for level, offset in _PAIR.findall(data)}
    return {}
