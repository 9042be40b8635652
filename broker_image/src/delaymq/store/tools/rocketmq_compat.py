"""Predicts how RocketMQ's broker would treat the delays of a DelayMQ store (`delaymq store verify --for-rocketmq`).

RocketMQ's broker ignores marks and explicit due times. It uses only delayOffset.json, the queue entries and its delay
level table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from delaymq.message.levels import DelayLevels, level_of_queue
from delaymq.message.marks import parse_mark
from delaymq.message.names import MARK, SCHEDULE_TOPIC
from delaymq.message.record import Record
from delaymq.store.reader import StoreReader

_PAIR = re.compile(rb'"?(\d+)"?\s*:\s*(-?\d+)')


@dataclass(frozen=True, kw_only=True)
class DelayedMessage:
    """One record of the schedule topic."""

    level: int
    queue_offset: int
    physical_offset: int
    due_ms: int


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

    def as_json(self) -> dict[str, object]:
        """Return the prediction for `--json`."""
        return asdict(self)


def prospect_for_rocketmq(path: str | os.PathLike[str], levels: DelayLevels, now_ms: int) -> Prospect:
    """Compare the log's marks with delayOffset.json. FileNotFoundError if `path` is not a store."""
    reader = StoreReader(path)
    offsets = _delay_offsets(reader.path)
    settled = _settled(reader)
    # A queue without marks was served by RocketMQ's broker, whose offset is then correct.
    marked_queues = {number for number, _, _ in settled}
    prospect = Prospect(offsets=offsets)
    for topic, queue_id in reader.queues():
        if topic != SCHEDULE_TOPIC:
            continue
        level = level_of_queue(queue_id)
        begin = offsets.get(level, 0)
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
            elif not is_settled and queue_id in marked_queues:
                prospect.never.append(message)
    return prospect


def _entries(reader: StoreReader, queue_id: int, level: int) -> Iterator[DelayedMessage]:
    first = reader.segments()
    begin = first[0].base if first else 0
    for number, offset, size, code in reader.entries(SCHEDULE_TOPIC, queue_id):
        if size != 2_147_483_647 and offset >= begin:
            yield DelayedMessage(level=level, queue_offset=number, physical_offset=offset, due_ms=code)


def _settled(reader: StoreReader) -> set[tuple[int, int, int]]:
    """Return queue id, queue offset and physical offset of each record that a mark of the log names."""
    settled = set()
    for record in reader.records():
        if _has_mark(record):
            mark = parse_mark(record.properties.get(MARK, ""))
            if mark is not None:
                settled.add((mark.queue_id, mark.queue_offset, mark.physical_offset))
    return settled


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
