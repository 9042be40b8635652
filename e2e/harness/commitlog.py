"""Reader of RocketMQ's commit log that shares no code with delaymq, so that tests can judge delaymq by it.

It returns records in log order and the fate of delayed messages. It does not repair, and does not read queues or
indexes. Layout: docs/formats/store. All numbers are big-endian. A missing or incomplete end is the end of the log;
damage before it raises BadLogError.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MESSAGE_MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BORN_IPV6_FLAG = 16
STORE_IPV6_FLAG = 32

_HEAD = struct.Struct(">iIIiiqqiq")
"""total size, magic, body CRC, queue id, flag, queue offset, physical offset, sys flag, born time"""
assert _HEAD.size == 48
_SIZE_MAGIC = struct.Struct(">iI")
_TAIL = struct.Struct(">iqi")
"""Reconsume times, prepared transaction offset, body length."""
_INT64 = struct.Struct(">q")


class BadLogError(Exception):
    """The log contains data that is neither a record nor its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A message in the log; times are milliseconds since 1970."""

    physical_offset: int
    size: int
    queue_id: int
    queue_offset: int
    body_crc: int
    flag: int
    sys_flag: int
    born_ms: int
    stored_ms: int
    reconsume_times: int
    body: bytes
    topic: str
    properties: dict[str, str]

    @property
    def unique_key(self) -> str:
        return self.properties.get("UNIQ_KEY", "")

    @property
    def is_scheduled(self) -> bool:
        """Whether it is in the schedule topic (its copy in the real topic is another record)."""
        return self.topic == SCHEDULE_TOPIC

    @property
    def is_copy(self) -> bool:
        """Whether it is the delivered copy of a delayed message."""
        return not self.is_scheduled and "REAL_TOPIC" in self.properties and self.properties.get("DELAY", "0") != "0"


def properties_of(raw: bytes) -> dict[str, str]:
    r"""Parse `name \x01 value` joined by `\x02`; the last of equal names is used, empty values count as absent."""
    found: dict[str, str] = {}
    for pair in raw.decode("utf-8").split("\x02"):
        name, separator, value = pair.partition("\x01")
        if separator and value:
            found[name] = value
    return found


def _segments(store: Path) -> list[tuple[int, Path]]:
    paths = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    return [(int(path.name), path) for path in paths]


def records(store: Path, *, with_bodies: bool = False, first_segment: int = 0) -> Iterator[Record]:
    """Yield every record from the oldest segment, or from the one that starts at ``first_segment``, to the log's
    end.

    Raises BadLogError if a later segment contains records although an earlier one ends too soon.
    """
    ended_at: int | None = None
    for base, path in _segments(store):
        if base < first_segment or path.stat().st_size == 0:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if ended_at is not None:
                if _SIZE_MAGIC.unpack_from(data, 0)[0] != 0:
                    raise BadLogError(f"{path.name} holds data, but the log ended at {ended_at}")
                continue
            position = 0
            while position + _SIZE_MAGIC.size <= len(data):
                size, magic = _SIZE_MAGIC.unpack_from(data, position)
                if magic == BLANK_MAGIC and size == len(data) - position:
                    position = len(data)
                    break
                record = _record(data, position, base, with_bodies) if magic == MESSAGE_MAGIC else None
                if record is None:
                    break
                yield record
                position += size
            if position < len(data):
                ended_at = base + position


def log_end(store: Path) -> int:
    """Return the physical offset after the last valid record; only the last segment with data is read."""
    end = first_segment = 0
    for base, path in _segments(store):
        with path.open("rb") as file:
            if any(file.read(_SIZE_MAGIC.size)):
                end = first_segment = base
    for record in records(store, first_segment=first_segment):
        end = record.physical_offset + record.size
    return end


def _record(data: mmap.mmap, position: int, base: int, with_body: bool) -> Record | None:
    """Return the record at `position`, or None if there is no complete record (the log's end)."""
    if position + _HEAD.size > len(data):
        return None
    size, _, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = _HEAD.unpack_from(data, position)
    if size < 91 or position + size > len(data) or physical_offset != base + position:
        return None
    at = position + _HEAD.size + (20 if sys_flag & BORN_IPV6_FLAG else 8)
    stored_ms = _INT64.unpack_from(data, at)[0]
    at += 8 + (20 if sys_flag & STORE_IPV6_FLAG else 8)
    reconsume_times, _, body_bytes = _TAIL.unpack_from(data, at)
    at += _TAIL.size
    if body_bytes < 0 or at + body_bytes + 3 > position + size:
        return None
    body = data[at : at + body_bytes]
    if zlib.crc32(body) & 0x7FFFFFFF != crc:
        return None
    at += body_bytes
    topic_bytes = data[at]
    topic = data[at + 1 : at + 1 + topic_bytes]
    at += 1 + topic_bytes
    property_bytes = int.from_bytes(data[at : at + 2], "big")
    at += 2
    if at + property_bytes != position + size:
        return None
    return Record(
        physical_offset=physical_offset, size=size, queue_id=queue_id, queue_offset=queue_offset, body_crc=crc,
        flag=flag, sys_flag=sys_flag, born_ms=born_ms, stored_ms=stored_ms, reconsume_times=reconsume_times,
        body=body if with_body else b"", topic=topic.decode("utf-8"),
        properties=properties_of(data[at : at + property_bytes]),
    )  # fmt: skip


def delays_ms(table: str) -> list[int]:
    """Return the delays of a messageDelayLevel table; level n is at index n - 1."""
    units = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return [int(word[:-1]) * units[word[-1]] for word in table.split()]


def due_ms(record: Record, level_delays_ms: list[int]) -> int:
    """Return the due time of a record in the schedule topic.

    `__DMQ_DUE` = `due_ms:queueId:queueOffset` applies only to the record that it names; otherwise store time + level.
    """
    words = record.properties.get("__DMQ_DUE", "").split(":")
    if len(words) == 3 and [int(word) for word in words[1:]] == [record.queue_id, record.queue_offset]:
        return int(words[0])
    level = min(int(record.properties["DELAY"]), len(level_delays_ms))
    return record.stored_ms + level_delays_ms[level - 1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delayed:
    """A delayed message: its record in the schedule topic and its delivered copies."""

    scheduled: Record
    due_ms: int
    copies: tuple[Record, ...]


def delayed_messages(store: Path, table: str, *, real_topic: str | None = None) -> dict[str, list[Delayed]]:
    """Return delayed messages by unique key: normally one per key, several if a producer repeated the send.

    In that case, copies are assigned in log order, and any surplus belongs to the last one.
    """
    level_delays_ms = delays_ms(table)
    scheduled: dict[str, list[Record]] = {}
    copies: dict[str, list[Record]] = {}
    for record in records(store):
        if not (record.is_scheduled or record.is_copy):
            continue
        if real_topic is not None and record.properties.get("REAL_TOPIC") != real_topic:
            continue
        (scheduled if record.is_scheduled else copies).setdefault(record.unique_key, []).append(record)
    orphans = copies.keys() - scheduled.keys()
    if orphans:
        raise BadLogError(f"{len(orphans)} delivered messages were never scheduled, such as {min(orphans)}")
    found: dict[str, list[Delayed]] = {}
    for key, waiting in scheduled.items():
        handed = copies.get(key, [])
        found[key] = [
            Delayed(
                scheduled=record,
                due_ms=due_ms(record, level_delays_ms),
                copies=tuple(handed[n:] if n == len(waiting) - 1 else handed[n : n + 1]),
            )
            for n, record in enumerate(waiting)
        ]
    return found


def lateness_ms(store: Path, table: str, *, real_topic: str | None = None) -> list[int]:
    """Return the store time of the first copy minus the due time for each delivered message, sorted."""
    return sorted(
        message.copies[0].stored_ms - message.due_ms
        for messages in delayed_messages(store, table, real_topic=real_topic).values()
        for message in messages
        if message.copies
    )
