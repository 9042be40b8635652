"""Entries of the index, in memory and packed. Format: docs/formats/store.md, "Timeline files"."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

ENTRY: Final = struct.Struct(">qqqiI")
"""Due time in ms, identity, physical offset of the record that holds the message, its size, number of the owner.

All numbers are positive, so packed entries in the order of their bytes are in the order of due time and identity.
"""
ENTRY_BYTES: Final = ENTRY.size
KEY: Final = struct.Struct(">qq")
KEY_BYTES: Final = KEY.size
AFTER_ALL_OF_KEY: Final = b"\xff" * (ENTRY_BYTES - KEY_BYTES)
"""A key followed by these bytes is greater than every entry with that key."""
NO_RECORD: Final = 0x7FFF_FFFF_FFFF_FFFF
"""In place of the record: the message that an older run contains under the same key has ended or was moved."""

Row: TypeAlias = tuple[int, int, int, int, int]
"""An unpacked entry."""


class Pending(NamedTuple):
    """A pending message; their order is the order of delivery within a topic."""

    due_ms: int
    identity: int
    """Physical offset of the message's first record."""
    record: int
    """Physical offset of the record that holds the message now."""
    size: int
    """Size of that record in bytes."""
    owner: int
    """Number of the producer's account and of the message's group (`Partitions.owner_number`)."""
    partition: int
    """Number of the message's topic and delay level (`Partitions.number`)."""

    def packed(self) -> bytes:
        """Return the packed entry."""
        return ENTRY.pack(*self[:5])


def unpacked(data: bytes) -> Iterator[Row]:
    """Iterate over the entries in packed ones."""
    return ENTRY.iter_unpack(data)


def identities_of(data: bytes) -> array[int]:
    """Return the identities of packed entries."""
    identities = array("q", data)[1 :: ENTRY_BYTES // 8]
    if sys.byteorder == "little":
        identities.byteswap()
    return identities


def packed_end(due_ms: int, identity: int) -> bytes:
    """Return the entry by which a newer run cancels the one with the same key in an older run."""
    return ENTRY.pack(due_ms, identity, NO_RECORD, 0, 0)
