"""Which record of the schedule topic another record settles: what it claims, and whether that is believed.

Our own copies carry a mark. The real broker's copies carry none, but those of our entries still have the entry's due
time, which names its place; and a foreign copy of a foreign entry is known by what the two have in common. None of it
is believed unless the records match, since clients, and the real broker's send-back, copy properties.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from delaymq.message import names
from delaymq.message.marks import parse_mark
from delaymq.message.record import Record
from delaymq.store.model import Dispatched

ANYWHERE = -1
"""A physical offset that is not known."""
_DUE_PLACE = re.compile(r"\d{16}:(\d{4}):(\d{20})\Z", re.ASCII)
_ELSEWHERE = frozenset({names.MARKS_TOPIC, names.SCHEDULE_DLQ_TOPIC})
"""Where records stand that settle an entry without being its copy under the real topic."""


@dataclass(slots=True)
class Claim:
    """What a record outside the schedule topic says about what it settles."""

    named: tuple[tuple[int, int, int], ...]
    """Entries that it names, the likeliest first: queue, offset, physical offset or ANYWHERE."""
    unique_key: str | None
    body_crc: int
    born_timestamp_ms: int
    topic: str
    queue_id: int
    reconsume_times: int
    delay: str | None
    """DELAY, when the record may be a copy without a mark."""
    by_mark: bool
    """Whether it carries a mark."""
    elsewhere: bool
    """Whether it is a dead letter or a mark alone: its topic and queue are then not the entry's."""
    physical_offset: int
    real_topic: str | None
    """REAL_TOPIC and REAL_QID: where the entry was to go."""
    real_queue_id: int

    @property
    def fingerprint(self) -> int:
        """Equal to `fingerprint_of` the entry that this is a copy of."""
        topic, queue_id = (self.real_topic, self.real_queue_id) if self.elsewhere else (self.topic, self.queue_id)
        return hash((self.unique_key, self.body_crc, topic, queue_id, self.reconsume_times))

    @property
    def foreign_key(self) -> int:
        """Equal to `foreign_key_of` a foreign entry that this may be a copy of."""
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
        """Whether this settles `record`, a record of the schedule topic at the place that is named."""
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
    """The claim of a record that is not in the schedule topic, or None: most records make none."""
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
    """What an entry and its copy have in common, as a number that holds within this process."""
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
    """What an entry that a foreign broker wrote has in common with its copy."""
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
    """REAL_QID, -1 when it is no queue."""
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
