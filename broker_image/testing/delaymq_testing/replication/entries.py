"""Records of the simulated log: 16 bytes each, so that offsets are like those of bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

SIZE = 16
PLAIN = 0
DELAYED = -1
_STRUCT = struct.Struct(">IIIi")


class Entry(NamedTuple):
    """A record."""

    epoch: int
    uid: int
    """Unique in the whole simulation."""
    number: int
    """Offset in the queue of all records."""
    origin: int
    """PLAIN, DELAYED, or the uid of the delayed record of which this is the delivered copy."""

    def encode(self) -> bytes:
        return _STRUCT.pack(*self)


def decode(data: bytes | bytearray) -> Iterator[Entry]:
    """Yield the records of a part of the log."""
    return (Entry(*fields) for fields in _STRUCT.iter_unpack(data))


def common_prefix(first: bytes | bytearray, second: bytes | bytearray) -> int:
    """Return the offset up to which two logs are equal, in whole records."""
    low, high = 0, min(len(first), len(second)) // SIZE
    while low < high:
        middle = (low + high + 1) // 2
        if first[: middle * SIZE] == second[: middle * SIZE]:
            low = middle
        else:
            high = middle - 1
    return low * SIZE
