"""What a store holds, read by structs of its own: nothing here is imported from the broker, whose reader may be wrong.

The layout is RocketMQ 4.9's (docs/formats/store.md).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

MESSAGE = 0xDAA320A7
_MAGIC = MESSAGE.to_bytes(4, "big")
_FIXED = struct.Struct(">iIIiiqqiq")  # size, magic, CRC, queue id, flag, queue offset, physical offset, sys flag, born
_ENTRY = struct.Struct(">qiq")
_BLANK_SIZE = 2**31 - 1


@dataclass(slots=True)
class Found:
    """A record of the log."""

    at: int
    size: int
    topic: str
    queue_id: int
    number: int
    sys_flag: int
    stored_ms: int
    prepared_offset: int
    body: bytes
    properties: dict[str, str]

    @property
    def in_queue(self) -> bool:
        """Whether its kind has a queue entry."""
        return self.sys_flag & 12 in (0, 8)

    @property
    def place(self) -> tuple[str, int, int]:
        """Topic, queue and number."""
        return self.topic, self.queue_id, self.number

    @property
    def is_filler(self) -> bool:
        return self.sys_flag & 12 == 12


@dataclass(slots=True)
class FoundQueue:
    """The entries of a queue: number → physical offset, and how many are blank."""

    places: dict[int, int] = field(default_factory=dict)
    blanks: int = 0
    end: int = 0


def read_log(store: Path) -> list[Found]:
    """Every sound record, also those behind damage, as far as they say where they stand."""
    found: list[Found] = []
    for path in sorted((store / "commitlog").iterdir()):
        base, data, at = int(path.name), path.read_bytes(), 0
        data = data.rstrip(b"\0") + bytes(8)
        while at >= 0:
            record = _record(data, at, base)
            if record is not None:
                found.append(record)
                at += record.size
            else:
                at = data.find(_MAGIC, at + 5) - 4
                at = at if at > 0 else -1
    return found


def _record(data: bytes, at: int, base: int) -> Found | None:
    """The record at a position; None when none stands there that names it, is as long as its parts, and has its CRC."""
    if len(data) - at < 91:
        return None
    size, magic, crc, queue_id, _, number, physical_offset, sys_flag, _ = _FIXED.unpack_from(data, at)
    if magic != MESSAGE or physical_offset != base + at or not 91 <= size <= len(data) - at:
        return None
    data = data[at : at + size] + bytes(24)
    position = _FIXED.size + (20 if sys_flag & 16 else 8)
    (stored_ms,) = struct.unpack_from(">q", data, position)
    position += 8 + (20 if sys_flag & 32 else 8)
    _, prepared_offset, body_length = struct.unpack_from(">iqi", data, position)
    position += 16
    body = data[position : position + body_length]
    position += body_length
    if body_length < 0 or position >= size or crc32(body) & 0x7FFFFFFF != crc:
        return None
    topic_end = position + 1 + data[position]
    if topic_end + 2 > size or topic_end + 2 + struct.unpack_from(">h", data, topic_end)[0] != size:
        return None
    topic = data[position + 1 : topic_end].decode("utf-8", "surrogateescape")
    text = data[topic_end + 2 : size].decode("utf-8", "surrogateescape")
    properties = dict(pair.split("\x01", 1) for pair in text.split("\x02") if "\x01" in pair)
    return Found(base + at, size, topic, queue_id, number, sys_flag, stored_ms, prepared_offset, body, properties)


def read_queues(store: Path) -> dict[tuple[str, int], FoundQueue]:
    """Every queue by topic and id, up to its first entry that is none."""
    queues = {}
    for folder in (store / "consumequeue").glob("*/*"):
        queue = queues[folder.parent.name, int(folder.name)] = FoundQueue()
        for path in sorted(folder.iterdir()):
            number = int(path.name) // _ENTRY.size
            for offset, size, _ in _ENTRY.iter_unpack(path.read_bytes()):
                if size <= 0:
                    break
                if size == _BLANK_SIZE:
                    queue.blanks += 1
                else:
                    queue.places[number] = offset
                number += 1
                queue.end = number
    return queues
