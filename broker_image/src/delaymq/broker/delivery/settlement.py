"""Claims: a record may settle a record of the schedule topic; this module decides whether the claim is valid.

DelayMQ's copies carry a mark. Copies of RocketMQ's broker carry none, but a copy of an entry that DelayMQ wrote still
has its due time, which names the entry. A foreign copy of a foreign entry is identified by what the two have in common.
A claim is valid only if the records match, since clients, and the send-back of RocketMQ's broker, copy properties.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from delaymq.message import names
from delaymq.message.marks import parse_mark
from delaymq.message.record import Record
from delaymq.store.model import Dispatched

ANYWHERE = -1
"""An unknown physical offset."""
_DUE_PLACE = re.compile(r"\d{16}:(\d{4}):(\d{20})\Z", re.ASCII)
_ELSEWHERE = frozenset({names.MARKS_TOPIC, names.SCHEDULE_DLQ_TOPIC, names.TIMER_TOPIC})
"""Topics of records that settle an entry without being its copy in the real topic."""


@dataclass(slots=True)
class Claim:
    """Claim of a record outside the schedule topic to settle an entry."""

    named: tuple[tuple[int, int, int], ...]
    """Named entries, the most likely first: queue, offset, physical offset or ANYWHERE."""
    unique_key: str | None
    body_crc: int
    born_timestamp_ms: int
    topic: str
    queue_id: int
    reconsume_times: int
    delay: str | None
    """DELAY, if the record may be a copy without a mark."""
    by_mark: bool
    """Whether the record carries a mark."""
    elsewhere: bool
    """Whether it is a dead letter, a mark alone or a moved message, whose topic and queue differ from the entry's."""
    physical_offset: int
    real_topic: str | None
    """REAL_TOPIC and REAL_QID: destination of the entry."""
    real_queue_id: int

    @property
    def fingerprint(self) -> int:
        """Value of `fingerprint_of` for the entry of which this is a copy."""
        topic, queue_id = (self.real_topic, self.real_queue_id) if self.elsewhere else (self.topic, self.queue_id)
        return hash((self.unique_key, self.body_crc, topic, queue_id, self.reconsume_times))

    @property
    def foreign_key(self) -> int:
        """Value of `foreign_key_of` for a foreign entry of which this may be a copy."""
        return _foreign_key(
            self.topic,
            self.queue_id,
            self.unique_key,
            self.body_crc,
            self.born_timestamp_ms,
            self.reconsume_times,
            self.delay,
        )

    def matches(self, record: Record) -> bool:
        """Whether this settles `record`, which is the record of the schedule topic at the named position."""
        properties = record.properties
        if (
            properties.get(names.UNIQUE_KEY) != self.unique_key
            or record.body_crc != self.body_crc
            or record.reconsume_times != self.reconsume_times
        ):
            return False
        return self.elsewhere or (
            properties.get(names.REAL_TOPIC) == self.topic and real_queue_id(properties) == self.queue_id
        )


def claim_of(record: Dispatched) -> Claim | None:
    """Return the claim of a record outside the schedule topic; None for most records."""
    properties = record.properties
    mark_text = properties.get(names.MARK)
    if mark_text is None and names.DELAY not in properties:
        return None
    named = []
    mark = parse_mark(mark_text) if mark_text is not None else None
    if mark is not None:
        named.append((mark.queue_id, mark.queue_offset, mark.physical_offset))
    is_copy = (
        properties.get(names.REAL_TOPIC) == record.topic
        and real_queue_id(properties) == record.queue_id
        and _is_delayed(properties)
    )
    if is_copy and (place := _DUE_PLACE.match(properties.get(names.DUE, ""))):
        named.append((int(place[1]), int(place[2]), ANYWHERE))
    if not named and not is_copy:
        return None
    return Claim(
        named=tuple(named),
        unique_key=properties.get(names.UNIQUE_KEY),
        body_crc=record.body_crc,
        born_timestamp_ms=record.born_timestamp_ms,
        topic=record.topic,
        queue_id=record.queue_id,
        reconsume_times=record.reconsume_times,
        delay=properties.get(names.DELAY) if is_copy else None,
        by_mark=mark is not None,
        elsewhere=record.topic in _ELSEWHERE,
        physical_offset=record.physical_offset,
        real_topic=properties.get(names.REAL_TOPIC),
        real_queue_id=real_queue_id(properties),
    )


def fingerprint_of(record: Dispatched) -> int:
    """Return a number that an entry and its copy have in common; valid within this process only."""
    properties = record.properties
    return hash(
        (
            properties.get(names.UNIQUE_KEY),
            record.body_crc,
            properties.get(names.REAL_TOPIC),
            real_queue_id(properties),
            record.reconsume_times,
        )
    )


def foreign_key_of(record: Dispatched | Record, properties: dict[str, str]) -> int:
    """Return a number that a foreign entry and its copy have in common; valid within this process only."""
    return _foreign_key(
        properties.get(names.REAL_TOPIC),
        real_queue_id(properties),
        properties.get(names.UNIQUE_KEY),
        record.body_crc,
        record.born_timestamp_ms,
        record.reconsume_times,
        properties.get(names.DELAY),
    )


def real_queue_id(properties: dict[str, str]) -> int:
    """Return REAL_QID, or -1 if it is not a valid queue id."""
    text = properties.get(names.REAL_QUEUE_ID, "")
    return int(text) if len(text) <= 9 and text.isascii() and text.isdigit() else -1


def _foreign_key(
    topic: str | None,
    queue_id: int,
    unique_key: str | None,
    body_crc: int,
    born_timestamp_ms: int,
    reconsume_times: int,
    delay: str | None,
) -> int:
    identity = unique_key if unique_key is not None else (body_crc, born_timestamp_ms)
    return hash((topic, queue_id, identity, reconsume_times, delay))


def _is_delayed(properties: dict[str, str]) -> bool:
    text = properties.get(names.DELAY, "")
    return text.isascii() and text.isdigit() and text.strip("0") != ""
