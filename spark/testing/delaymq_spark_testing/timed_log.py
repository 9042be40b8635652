"""Logs of records whose properties depend on their place, as statements about timed messages do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from zlib import crc32

from delaymq.message.record import encode_record

HOST = bytes((10, 0, 0, 7, 0, 0, 42, 159))
START_MS = 1_790_000_000_000
SEGMENT_BYTES = 1 << 20

Properties = Callable[[int], Mapping[str, str | bytes]]
"""Returns the properties of the record at a physical offset."""


def write_timed_log(path: Path, records: Sequence[tuple[str, Properties]]) -> list[int]:
    """Write a store with one segment of these records, by topic and properties; return their physical offsets."""
    data, places = bytearray(), []
    for number, (topic, properties) in enumerate(records):
        place = len(data)
        places.append(place)
        pairs = [name.encode() + b"\x01" + _bytes(value) for name, value in properties(place).items()]
        data += encode_record(
            topic=topic.encode(), queue_id=0, flag=0, queue_offset=number, sys_flag=0, born_timestamp_ms=START_MS,
            born_host=HOST, store_host=HOST, reconsume_times=0, prepared_transaction_offset=0, body=b"body",
            properties=b"\x02".join(pairs), physical_offset=place, store_timestamp_ms=START_MS + number,
        )  # fmt: skip
    (path / "commitlog").mkdir(parents=True, exist_ok=True)
    (path / "commitlog" / f"{0:020d}").write_bytes(bytes(data).ljust(SEGMENT_BYTES, b"\0"))
    return places


def sealed(version: int, place: int, body: str) -> str:
    """Return a sound statement of any version."""
    text = f"{version}:{place:020d}:{body}"
    return f"{text}:{crc32(text.encode()):08x}"


def flipped(text: str, bit: int) -> bytes:
    """Return a text with one flipped bit."""
    data = bytearray(text.encode())
    data[bit // 8] ^= 1 << (bit % 8)
    return bytes(data)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
