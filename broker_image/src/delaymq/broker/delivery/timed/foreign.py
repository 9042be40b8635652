"""Timers of RocketMQ 5 in the log, and their adoption."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from delaymq.broker.delivery.timed.requests import requested_time
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.record import Record
from delaymq.message.timed_marks import carried_due
from delaymq.store.model import Dispatched, NewRecord, again

_logger = logging.getLogger(__name__)
_Key: TypeAlias = tuple[str, str]
"""Topic, and unique key or checksum and birth."""


class ForeignTimers:
    """Records of the timer topic that RocketMQ 5 stored and has neither delivered nor recalled."""

    def __init__(self) -> None:
        self._places: dict[_Key, list[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))

    def places(self) -> list[int]:
        """Return their physical offsets in order."""
        return sorted(place for places in self._places.values() for place in places)

    def add(self, record: Dispatched) -> None:
        """Add a record of the timer topic without a statement of DelayMQ."""
        properties = record.properties
        recalled = properties.get(names.TIMER_DELETE_UNIQUE_KEY)
        if recalled is not None:
            topic = properties.get(names.REAL_TOPIC, "")
            # RocketMQ 5.3.2 and later put the topic before the key.
            self._places.pop((topic, recalled), None)
            self._places.pop((topic, recalled.removeprefix(topic)), None)
            return
        places = self._places.setdefault(_key(record), [])
        if names.TIMER_ROLL_TIMES in properties and places:
            places.pop()  # the same message, stored again
        places.append(record.physical_offset)

    def delivered(self, record: Dispatched) -> None:
        """Remove the message of which `record` may be the copy in its real topic."""
        self._remove(_key(record), None)

    def adopted(self, record: Dispatched, place: int) -> None:
        """Remove the record at `place`, which a record of DelayMQ carries forward."""
        self._remove(_key(record), place)

    def _remove(self, key: _Key, place: int | None) -> None:
        places = self._places.get(key)
        if places is not None:
            if place is None:
                places.pop(0)
            elif place in places:
                places.remove(place)
            if not places:
                del self._places[key]


def _key(record: Dispatched) -> _Key:
    properties = record.properties
    unique = properties.get(names.UNIQUE_KEY) or f"{record.body_crc}:{record.born_timestamp_ms}"
    return properties.get(names.REAL_TOPIC, ""), unique


def adopted_record(record: Record) -> NewRecord:
    """Return the record by which DelayMQ takes over a timer of RocketMQ 5.

    The due time is the requested one; TIMER_OUT_MS is up to one second earlier. IllegalMessageError if the record
    requests none.
    """
    properties = record.properties
    request = requested_time(
        {name: value for name, value in properties.items() if name != names.START_DELIVER_TIME}, level=0
    )
    if request is None:
        raise IllegalMessageError(f"the timer at physical offset {record.physical_offset} has no due time")
    due_ms = request.due_ms(record.store_timestamp_ms)
    out_ms = properties.get(names.TIMER_OUT_MS, "")
    if request.is_relative and out_ms.isdecimal():
        # The delay counts from the first record, but the store time of a rolled record is that of its last roll.
        due_ms = min(due_ms, int(out_ms) + _PRECISION_MS)
    for name in _REPLACED:
        properties.pop(name, None)
    properties[names.TIMER_OUT_MS] = str(due_ms)
    return again(record, names.TIMER_TOPIC, 0, properties, carried_due(due_ms, record.physical_offset))


_PRECISION_MS: Final = 1_000
"""RocketMQ 5's timerPrecisionMs by default, by which it rounds TIMER_OUT_MS down; it can only be lowered."""
_REPLACED: Final = (names.DUE, names.MARK, names.ACCOUNT, names.TIMER_ROLL_TIMES)


def adopt(places: list[int], record_at: Callable[[int], Record | None], append: Callable[[NewRecord], object]) -> int:
    """Take over the timers at these physical offsets; return their number. StoreError."""
    adopted = 0
    for place in places:
        record = record_at(place)
        if record is None:
            continue
        try:
            append(adopted_record(record))
            adopted += 1
        except IllegalMessageError as error:
            _logger.error("a timer of RocketMQ 5 cannot be taken over: %s", error)
    return adopted
