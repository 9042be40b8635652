"""Writers of synthetic logs, for tests of the judges."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from pathlib import Path

SEGMENT_BYTES = 4096
TOPIC = "T"
START_MS = 1_700_000_000_000
BORN_MS = START_MS - 10


class LogWriter:
    """Writes records in the store format, in segments of 4096 bytes."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "commitlog"
        self._folder.mkdir()
        self._data = bytearray()
        self._queue_ends: Counter[tuple[str, int]] = Counter()

    def append(self, topic: str, queue_id: int, stored_ms: int, properties: dict[str, str], body: bytes) -> None:
        """Append a record to the log in memory."""
        queue_offset = self._queue_ends[(topic, queue_id)]
        self._queue_ends[(topic, queue_id)] += 1
        raw = "\x02".join(f"{name}\x01{value}" for name, value in properties.items()).encode()
        size = 91 + len(body) + len(topic) + len(raw)
        left = SEGMENT_BYTES - len(self._data) % SEGMENT_BYTES
        if size + 8 > left:
            self._data += struct.pack(">iI", left, 0xCBD43194) + b"\xee" * (left - 8)
        crc = zlib.crc32(body) & 0x7FFFFFFF
        position = len(self._data)
        self._data += struct.pack(">iIIiiqqiq", size, 0xDAA320A7, crc, queue_id, 0, queue_offset, position, 0, BORN_MS)
        self._data += bytes(8) + struct.pack(">q", stored_ms) + bytes(8) + struct.pack(">iqi", 0, 0, len(body)) + body
        self._data += bytes([len(topic)]) + topic.encode() + struct.pack(">H", len(raw)) + raw

    def delayed(self, key: str, level: int, **properties: str) -> None:
        stored = {"UNIQ_KEY": key, "DELAY": str(level), "REAL_TOPIC": TOPIC, "REAL_QID": "3", **properties}
        self.append("SCHEDULE_TOPIC_XXXX", level - 1, START_MS, stored, b"body")

    def copy(self, key: str, level: int, late_ms: int = 0, body: bytes = b"body", **properties: str) -> None:
        stored = {"UNIQ_KEY": key, "DELAY": str(level), "REAL_TOPIC": TOPIC, "REAL_QID": "3", **properties}
        self.append(TOPIC, 3, START_MS + level * 1000 + late_ms, stored, body)

    def write(self) -> None:
        whole = -(-len(self._data) // SEGMENT_BYTES) * SEGMENT_BYTES
        padded = bytes(self._data).ljust(whole, b"\0")
        for base in range(0, whole, SEGMENT_BYTES):
            (self._folder / f"{base:020d}").write_bytes(padded[base : base + SEGMENT_BYTES])


class TimedLog(LogWriter):
    """Writes records of timed messages, whose statements contain the physical offset and a checksum."""

    def state(self, topic: str, name: str, statement: str, **properties: str) -> int:
        """Append a record with a statement and return its physical offset."""
        return self.stated(topic, name, statement, START_MS, properties, b"body")

    def stated(
        self, topic: str, name: str, statement: str, stored_ms: int, properties: dict[str, str], body: bytes
    ) -> int:
        """The same, at another time and with another body."""
        stored = {"REAL_TOPIC": TOPIC, "REAL_QID": "3", **properties, name: sealed(0, statement)}
        at = self.next_offset(topic, stored, len(body))
        self.append(topic, 0, stored_ms, {**stored, name: sealed(at, statement)}, body)
        return at

    def next_offset(self, topic: str, properties: dict[str, str], body_bytes: int) -> int:
        """Return the physical offset of a record that is appended next."""
        raw = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
        left = SEGMENT_BYTES - len(self._data) % SEGMENT_BYTES
        return len(self._data) + (left if 91 + body_bytes + len(topic) + len(raw) + 8 > left else 0)

    def timed(self, due: str, **properties: str) -> int:
        return self.state("rmq_sys_wheel_timer", "__DMQ_DUE", due, **properties)

    def mark(self, topic: str, kind: str, identity: int, next_due: str = "", queue: str = "") -> int:
        return self.state(topic, "__DMQ_MARK", f"{kind}:{START_MS}:{identity}::{START_MS + 5}:{next_due}:{queue}:")


def sealed(place: int, body: str) -> str:
    text = f"2:{place:020d}:{body}"
    return f"{text}:{zlib.crc32(text.encode()):08x}"
