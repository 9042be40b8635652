"""Index file: a hash file that maps unique ids and keys to physical offsets (docs/formats/store.md, "Index").

The newest file has its slots in memory and its new entries in a buffer. Entries are flushed before anything that states
their count. Slots are written occasionally; missing slots are restored from the entries, which contain their hash.
"""

from __future__ import annotations

import mmap
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from delaymq import kernels
from delaymq.store.disk.aside import AsideFolder
from delaymq.store.disk.files import Files

HEADER = struct.Struct(
    ">q"  # begin timestamp, ms
    "q"  # end timestamp, ms
    "q"  # begin physical offset
    "q"  # end physical offset
    "i"  # used slots
    "i"  # count: number of the next entry
)
ENTRY = struct.Struct(
    ">i"  # key hash
    "q"  # physical offset
    "i"  # seconds since the file's begin timestamp
    "i"  # previous entry of the chain
)
SLOT = struct.Struct(">i")
INDEXED_KEY = struct.Struct(
    ">i"  # key hash
    "q"  # physical offset
    "q"  # store time, ms
)
"""A key that is to be added."""
_slot_from, _slot_into, _packed_entry = SLOT.unpack_from, SLOT.pack_into, ENTRY.pack
assert HEADER.size == 40
assert ENTRY.size == 20
assert SLOT.size == 4
HEADER_BYTES: Final = 40
ENTRY_BYTES: Final = 20
MAX_INT: Final = (1 << 31) - 1
SLOTS_INTERVAL_ENTRIES: Final = 400_000
"""Slots take 20 MB, and hashing touches all of them. This interval bounds the entries that recovery must restore (about
0.1 s) and writes the slots only once in several hundred MiB of log.
"""
MAX_QUERY: Final = 64
"""RocketMQ's maximum number of results (maxMsgsNumBatch)."""
STEP_ENTRIES: Final = 64
"""Entries followed per time slice: about 0.2 ms."""


def chain_entries(
    slots: mmap.mmap, slot_count: int, number: int, begin_ms: int, keys: bytes
) -> tuple[bytes | bytearray, int]:
    """Chain one entry for each key, packed as INDEXED_KEY; return the entries, and how many slots were empty before.

    `number` is the number of the first entry, and `begin_ms` is the time that dates the file; entries of a file without
    one have no time. Twin of a kernel (docs/kernels.md).
    """
    entries, empty_slots = bytearray(), 0
    for number_of_key, (key_hash, physical_offset, stored_ms) in enumerate(INDEXED_KEY.iter_unpack(keys), number):
        at = key_hash % slot_count * 4
        (previous,) = _slot_from(slots, at)
        if not 0 < previous < number_of_key:
            previous = 0
            empty_slots += 1
        seconds = min(max((stored_ms - begin_ms) // 1000, 0), MAX_INT) if begin_ms > 0 else 0
        entries += _packed_entry(key_hash, physical_offset, seconds, previous)
        _slot_into(slots, at, number_of_key)
    return entries, empty_slots


_chain_entries = kernels.choose("chain_entries", chain_entries)


class IndexFile:
    """One index file; only the newest one is written."""

    def __init__(self, files: Files, path: str, slot_count: int, entry_count: int) -> None:
        self._files = files
        self.path = path
        self.slot_count = slot_count
        self.entry_count = entry_count
        self._entries_at = HEADER_BYTES + slot_count * 4
        self.begin_timestamp_ms = 0
        self.end_timestamp_ms = 0
        self.begin_offset = 0
        self.end_offset = 0
        self.used_slots = 0
        self.count = 1
        self.slots: mmap.mmap | None = None
        self.buffer = bytearray()
        """Entries not yet in the file: the last ones before `count`."""
        self.slots_count = 1
        """Entry number up to which entries are in the slots on disk."""
        self._descriptor: int | None = None
        self.is_removed = False

    @property
    def file_bytes(self) -> int:
        """Size of the whole file in bytes."""
        return HEADER_BYTES + self.slot_count * 4 + self.entry_count * ENTRY_BYTES

    @property
    def written_count(self) -> int:
        """Entry number up to which entries are in the file."""
        return self.count - len(self.buffer) // ENTRY_BYTES

    @property
    def is_full(self) -> bool:
        """Whether there is no space for another entry."""
        return self.count >= self.entry_count

    def descriptor(self) -> int:
        """Return the descriptor; open or create the file if necessary."""
        if self._descriptor is None:
            self._descriptor = self._files.open(self.path, create=True)
            facts = self._files.facts(self.path)
            if facts is None or facts.file_bytes != self.file_bytes:
                self._files.set_size(self._descriptor, self.file_bytes)
        return self._descriptor

    def load_header(self) -> None:
        """Read the header from the file."""
        data = self._files.pread(self.descriptor(), HEADER_BYTES, 0)
        (
            self.begin_timestamp_ms, self.end_timestamp_ms, self.begin_offset, self.end_offset, self.used_slots, count,
        ) = HEADER.unpack(data)  # fmt: skip
        self.count = self.slots_count = max(count, 1)

    def load_slots(self, *, from_file: bool) -> None:
        """Load the slots into memory, of which only touched pages are used."""
        self.slots = mmap.mmap(-1, self.slot_count * 4)
        if not from_file:
            return
        descriptor = self.descriptor()
        end = HEADER_BYTES + self.slot_count * 4
        for first, last in self._files.data_ranges(descriptor, HEADER_BYTES, end):
            data = self._files.pread(descriptor, last - first, first)
            self.slots[first - HEADER_BYTES : first - HEADER_BYTES + len(data)] = data

    def put(self, key_hash: int, physical_offset: int, store_timestamp_ms: int) -> None:
        """Add an entry as the head of its chain."""
        slots, count, begin_ms = self.slots, self.count, self.begin_timestamp_ms
        assert slots is not None
        at = key_hash % self.slot_count * 4
        (previous,) = _slot_from(slots, at)
        if not 0 < previous < count:
            previous = 0
            self.used_slots += 1
        seconds = (store_timestamp_ms - begin_ms) // 1000 if begin_ms > 0 else 0
        if not 0 <= seconds <= MAX_INT:
            seconds = 0 if seconds < 0 else MAX_INT
        self.buffer += _packed_entry(key_hash, physical_offset, seconds, previous)
        _slot_into(slots, at, count)
        if count == 1:
            self.begin_offset = physical_offset
            self.begin_timestamp_ms = store_timestamp_ms
        self.count = count + 1
        self.end_offset = physical_offset
        self.end_timestamp_ms = store_timestamp_ms

    def put_all(self, entries: Sequence[tuple[int, int]], store_timestamp_ms: int) -> None:
        """Add entries of one store time: hash and physical offset. There must be room for them, and at least one."""
        if self.count == 1:
            self.put(*entries[0], store_timestamp_ms)  # it dates the file
            entries = entries[1:]
        slots, slot_count, buffer, number = self.slots, self.slot_count, self.buffer, self.count
        assert slots is not None
        begin_ms = self.begin_timestamp_ms
        seconds = min(max((store_timestamp_ms - begin_ms) // 1000, 0), MAX_INT) if begin_ms > 0 else 0
        for key_hash, physical_offset in entries:
            at = key_hash % slot_count * 4
            (previous,) = _slot_from(slots, at)
            if not 0 < previous < number:
                previous = 0
                self.used_slots += 1
            buffer += _packed_entry(key_hash, physical_offset, seconds, previous)
            _slot_into(slots, at, number)
            number += 1
        if entries:
            self.end_offset = entries[-1][1]
        self.count = number
        self.end_timestamp_ms = store_timestamp_ms

    def put_packed(self, keys: bytes) -> None:
        """Add an entry for each key, packed as INDEXED_KEY. There must be room for them, and at least one."""
        if self.count == 1:
            self.put(*INDEXED_KEY.unpack_from(keys))  # it dates the file
            keys = keys[INDEXED_KEY.size :]
            if not keys:
                return
        assert self.slots is not None
        entries, empty_slots = _chain_entries(self.slots, self.slot_count, self.count, self.begin_timestamp_ms, keys)
        self.buffer += entries
        self.used_slots += empty_slots
        self.count += len(keys) // INDEXED_KEY.size
        _, self.end_offset, self.end_timestamp_ms = INDEXED_KEY.unpack_from(keys, len(keys) - INDEXED_KEY.size)

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return hash, physical offset, seconds and previous entry of an entry."""
        position = len(self.buffer) - (self.count - number) * ENTRY_BYTES
        if position >= 0:
            return ENTRY.unpack_from(self.buffer, position)
        return self.entry_on_disk(number)

    def _entry_position(self, number: int) -> int:
        return self._entries_at + number * ENTRY_BYTES

    def head_of_chain(self, key_hash: int) -> int:
        """Return the newest entry of the chain of `key_hash`; 0 if the chain is empty."""
        at = key_hash % self.slot_count * 4
        if self.slots is not None:
            return int(SLOT.unpack_from(self.slots, at)[0])
        data = self._files.pread(self.descriptor(), 4, HEADER_BYTES + at)
        return int(SLOT.unpack(data)[0]) if len(data) == 4 else 0

    def query(self, key_hash: int, begin_ms: int, end_ms: int, limit: int, found: list[int], steps: int) -> int:
        """Append offsets of matching entries to `found`, newest first; return how many of `steps` entries remain.

        A chain contains the entries of all keys whose hashes share a slot, so it may be long even without any match.
        """
        number = self.head_of_chain(key_hash)
        while 0 < number < self.count and len(found) < limit and steps:
            steps -= 1
            entry_hash, offset, seconds, previous = self.entry(number)
            if seconds < 0:
                break
            # The entry stores only the second: its record may be from any instant within it.
            time_ms = self.begin_timestamp_ms + seconds * 1000
            if entry_hash == key_hash and time_ms + 999 >= begin_ms and time_ms <= end_ms:
                found.append(offset)
            if previous == number or time_ms + 999 < begin_ms:
                break
            number = previous
        return steps

    def steps(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield all results of `query`; None marks points at which the caller may interrupt the search."""
        number = self.head_of_chain(key_hash)
        examined = 0
        while 0 < number < self.count:
            entry_hash, offset, seconds, previous = self.entry(number)
            time_ms = self.begin_timestamp_ms + seconds * 1000
            if seconds < 0 or time_ms + 999 < begin_ms:
                return
            if entry_hash == key_hash and time_ms <= end_ms:
                yield offset
            examined += 1
            if examined % STEP_ENTRIES == 0:
                yield None
            if previous == number:
                return
            number = previous

    def is_in_time(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file may contain records stored in begin…end."""
        return begin_ms <= self.end_timestamp_ms and end_ms >= self.begin_timestamp_ms

    def write_entries(self) -> None:
        """Write the buffer to the file."""
        if self.buffer:
            self._files.pwrite(self.descriptor(), self.buffer, self._entry_position(self.written_count))
            self.buffer = bytearray()

    def header(self) -> bytes:
        """Return the current header as bytes."""
        times = self.begin_timestamp_ms, self.end_timestamp_ms
        return HEADER.pack(*times, self.begin_offset, self.end_offset, self.used_slots, self.count)

    def copy_of_slots(self) -> bytes:
        """Return the current slots as bytes; slots on disk must not name missing entries."""
        return self.slots[:] if self.slots is not None else b""

    def write_slots(self, data: bytes) -> None:
        """Write slots to the file; runs in any thread."""
        self._files.pwrite(self.descriptor(), data, HEADER_BYTES)

    def sync(self) -> None:
        """Flush the file to disk."""
        self._files.fdatasync(self.descriptor())

    def write_header(self, header: bytes) -> None:
        """Write a header to the file."""
        self._files.pwrite(self.descriptor(), header, 0)

    def truncate(self, count: int, used: tuple[int, int, int, int, int], slots_count: int, aside: AsideFolder) -> bool:
        """Remove entries from `count` on; return False if the file is damaged. `used`: the header's other numbers.

        Slots on disk may be older than `count` or name removed entries; in that case their chain is followed.
        """
        (
            self.begin_timestamp_ms, self.end_timestamp_ms, self.begin_offset, self.end_offset, self.used_slots,
        ) = used  # fmt: skip
        self.count = count
        self.load_slots(from_file=slots_count > 1)
        slots = self.slots
        assert slots is not None
        values = array("i", slots[:])
        if sys.byteorder == "little":
            values.byteswap()
        if max(values) >= count:
            for position, value in enumerate(values):
                if value >= count:
                    SLOT.pack_into(slots, position * 4, self._below(value, count, position))
        position = self._entry_position(slots_count)
        data = self._files.pread(self.descriptor(), (count - slots_count) * ENTRY_BYTES, position)
        if len(data) != (count - slots_count) * ENTRY_BYTES:
            return False
        for number, (key_hash, _, _, _) in enumerate(ENTRY.iter_unpack(data), slots_count):
            if key_hash < 0:
                return False
            SLOT.pack_into(slots, key_hash % self.slot_count * 4, number)
        self.slots_count = slots_count
        aside.zero(self.descriptor(), self.path, self._entry_position(count), self.file_bytes)
        return True

    def _below(self, number: int, count: int, slot: int) -> int:
        while number >= count:
            key_hash, _, _, previous = self.entry_on_disk(number)
            if previous >= number or key_hash % self.slot_count != slot:
                return 0
            number = previous
        return max(number, 0)

    def entry_on_disk(self, number: int) -> tuple[int, int, int, int]:
        """Return an entry like `entry`, even one from `count` on."""
        descriptor = self._descriptor if self._descriptor is not None else self.descriptor()
        data = self._files.pread(descriptor, ENTRY_BYTES, self._entries_at + number * ENTRY_BYTES)
        return ENTRY.unpack(data) if len(data) == ENTRY_BYTES else (-1, 0, 0, 0)

    def close(self, *, drop_slots: bool = True) -> None:
        """Release the descriptor and the slots."""
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None
        if drop_slots and self.slots is not None:
            self.slots.close()
            self.slots = None
