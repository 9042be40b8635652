"""RocketMQ's HA protocol: a slave reports offsets, and its master sends ranges of the log ([format][wire]).

[wire]: docs/formats/wire.md#replication-to-plain-slaves
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from delaymq.protocol.errors import ProtocolError

REPORT: Final = struct.Struct(">q")
"""Physical offset: the end of the slave's log."""
RANGE_HEAD: Final = struct.Struct(
    ">q"  # physical offset of the first byte
    "i"  # number of bytes that follow; 0: heartbeat
)
assert REPORT.size == 8
assert RANGE_HEAD.size == 12
MAX_RANGE_BYTES: Final = (4 << 20) - RANGE_HEAD.size
"""Largest range that RocketMQ's slave can receive: its buffer has 4 MiB."""


def encode_report(offset: int) -> bytes:
    """Return a slave's report."""
    return REPORT.pack(offset)


def encode_range(offset: int, data: bytes | memoryview = b"") -> bytes:
    """Return a range of the log; without data, a heartbeat."""
    return RANGE_HEAD.pack(offset, len(data)) + data


def encode_ranges(offset: int, data: bytes, most_bytes: int) -> bytes:
    """Return `data` as consecutive ranges of at most `most_bytes`."""
    view = memoryview(data)
    return b"".join(encode_range(offset + at, view[at : at + most_bytes]) for at in range(0, len(data), most_bytes))


class ReportReader:
    """Reports of a slave, received in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[int, int, int] | None:
        """Return the number of complete reports with the first and the last of them; None without one."""
        data = self._rest + data
        count, rest = divmod(len(data), REPORT.size)
        self._rest = data[len(data) - rest :]
        if not count:
            return None
        (first,), (last,) = REPORT.unpack_from(data), REPORT.unpack_from(data, (count - 1) * REPORT.size)
        return count, first, last


class RangeReader:
    """Ranges that a master sends, received in pieces of any size. Buffers at most one incomplete range."""

    def __init__(self, max_range_bytes: int = MAX_RANGE_BYTES) -> None:
        self._max_range_bytes = max_range_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the offset and the bytes of each complete range; no bytes: a heartbeat. ProtocolError."""
        buffer = self._buffer
        buffer += data
        position = 0
        try:
            while len(buffer) - position >= RANGE_HEAD.size:
                offset, size = RANGE_HEAD.unpack_from(buffer, position)
                if offset < 0 or not 0 <= size <= self._max_range_bytes:
                    raise ProtocolError(
                        f"{size} bytes of the log at offset {offset} are not a range (limit: {self._max_range_bytes}"
                        " bytes)"
                    )
                begin = position + RANGE_HEAD.size
                if len(buffer) - begin < size:
                    break
                position = begin + size
                yield offset, bytes(buffer[begin:position])
        finally:
            del buffer[:position]
