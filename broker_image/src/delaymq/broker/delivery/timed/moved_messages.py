"""Pending messages whose groups were moved after copies of them had been stored without a mark.

Such copies were made by RocketMQ 5, or their marks are damaged. They state the due time before the move.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from delaymq.broker.delivery.timed.requests import group_in
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.rebuilding import GroupStatements

if TYPE_CHECKING:
    from delaymq.broker.delivery.reader import ScheduleReader

_Likeness: TypeAlias = tuple[int, int, str | None]
"""What a record and its copy have in common: checksum of the body, time of birth, and unique id."""


class MovedMessages:
    """Finds the pending messages of which a copy may be one. Their records are read once for each due time."""

    def __init__(self, reader: ScheduleReader, index: Timeline, groups: GroupStatements) -> None:
        self._reader = reader
        self._index = index
        self._groups = groups
        self._known: dict[tuple[str, int], dict[_Likeness, list[Pending]]] = {}

    def like(self, copy: Record, properties: dict[str, str]) -> Iterator[Pending]:
        """Yield pending messages that were moved with their group after `copy`, which has these properties, was stored.

        OSError, TimelineDamagedError.
        """
        group = group_in(properties)
        changes = self._groups.after(copy.topic, group, copy.physical_offset) if group else ()
        wanted = copy.body_crc, copy.born_timestamp_ms, properties.get(names.UNIQUE_KEY)
        for due_ms in {due_ms for _, due_ms in changes if due_ms is not None}:
            yield from self._due_at(copy.topic, due_ms).get(wanted, ())

    def _due_at(self, topic: str, due_ms: int) -> dict[_Likeness, list[Pending]]:
        found = self._known.get((topic, due_ms))
        if found is None:
            found = self._known[topic, due_ms] = {}
            partition = self._index.partitions.find(topic)
            for pending in self._index.due_at(due_ms, partition) if partition is not None else ():
                record = self._reader.timed_record(pending)
                if record is not None:
                    key = record.body_crc, record.born_timestamp_ms, record.properties.get(names.UNIQUE_KEY)
                    found.setdefault(key, []).append(pending)
        return found
