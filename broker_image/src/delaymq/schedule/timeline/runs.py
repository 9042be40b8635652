"""Runs: immutable entries, sorted by partition, due time and identity; small ones in memory, large ones in files."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple
from zlib import crc32

from delaymq.schedule.timeline.entries import ENTRY_BYTES, KEY, KEY_BYTES, identities_of
from delaymq.schedule.timeline.files import RunFile, TimelineDamagedError

BLOCK_ENTRIES: Final = 512
BLOCK_BYTES: Final = BLOCK_ENTRIES * ENTRY_BYTES
"""Size of the part of a file that one checksum covers."""
_MAGIC: Final = b"DMQRUN01"
_HEADER: Final = struct.Struct(">8sQII")
"""Magic, number of entries, number of sections, CRC32 of these three and of everything after the entries."""
HEADER_BYTES: Final = 64
_SECTION: Final = struct.Struct(">IQ")
"""Number of the partition, number of its entries."""
_CRC_BYTES: Final = 4
_READ_BLOCKS: Final = 256
_SAMPLED: Final = 256
"""Entries of a run from which the range of its identities is estimated."""
_BITS_PER_ENTRY: Final = 8
"""At least; the number of bits is a power of two."""
# Hash of identities:
_FACTOR: Final = 2_654_435_761
_SHIFT: Final = 20


class Sizes(NamedTuple):
    """Sizes of the parts of an index, in entries."""

    memory: int = 4_096
    """Entries in memory, as objects, before they become a run: sorting them takes 2 ms."""
    run_in_memory: int = 20_000
    """A merge of more entries is written to a file."""
    merged_runs: int = 8
    """Runs of similar size that are merged into one. Each entry is merged once per size."""
    step: int = 1_024
    """Entries merged per step: about 0.5 ms."""


class Section(NamedTuple):
    """Entries of one partition in a run."""

    partition: int
    first: int
    """Index of the first entry in the run."""
    end: int


def sections_of(counts: Iterable[tuple[int, int]]) -> list[Section]:
    """Return the sections of a run with these partitions and numbers of entries."""
    counts = list(counts)
    ends = list(accumulate(count for _, count in counts))
    return [Section(partition, end - count, end) for (partition, count), end in zip(counts, ends, strict=True)]


class Identities:
    """Approximate set of the identities in a run: one that is not among its entries is seldom reported as contained."""

    __slots__ = ("_bits", "_mask")

    def __init__(self, entries: int) -> None:
        """Return the empty set for a run with at most this number of entries."""
        self._mask = (1 << (entries * _BITS_PER_ENTRY).bit_length()) - 1
        self._bits = bytearray((self._mask >> 3) + 1)

    def add(self, data: bytes) -> None:
        """Add the identities of packed entries."""
        bits, mask = self._bits, self._mask
        for identity in identities_of(data):
            bit = identity * _FACTOR >> _SHIFT & mask
            bits[bit >> 3] |= 1 << (bit & 7)

    def __contains__(self, identity: int) -> bool:
        bit = identity * _FACTOR >> _SHIFT & self._mask
        return bool(self._bits[bit >> 3] >> (bit & 7) & 1)


class Run:
    """A run in memory, and the base of those in files."""

    __slots__ = ("age", "count", "data", "highest", "identities", "is_plain", "left", "lowest", "sections")

    def __init__(self, data: bytes, sections: Sequence[Section], *, is_plain: bool) -> None:
        self.data = data
        self.sections = sections
        self.count = sections[-1].end if sections else 0
        self.is_plain = is_plain
        """Whether no entry ends one of an older run, and none is in an older run as well."""
        self.age = 0
        """Position among the runs: the larger, the newer."""
        self.left = self.count
        """Number of entries that have not been taken."""
        self.lowest, self.highest = _sampled_identities(data, ENTRY_BYTES)
        """Lowest and highest identity of some entries: a hint for the order in which runs are searched."""
        self.identities: Identities | None = None
        """Identities of the entries, unless the run is plain."""
        if data and not is_plain:
            self.identities = Identities(self.count)
            self.identities.add(data)

    @property
    def name(self) -> str:
        """Name of the file; empty for a run in memory."""
        return ""

    @property
    def file_bytes(self) -> int:
        """Size of the file; 0 for a run in memory."""
        return 0

    def read(self, first: int, count: int) -> bytes:
        """Return packed entries. OSError, TimelineDamagedError."""
        return self.data[first * ENTRY_BYTES : (first + count) * ENTRY_BYTES]

    def key_at(self, index: int) -> tuple[int, int]:
        """Return due time and identity of an entry. OSError, TimelineDamagedError."""
        due_ms, identity = KEY.unpack(self._key_bytes(index))
        return due_ms, identity

    def _key_bytes(self, index: int) -> bytes:
        at = index * ENTRY_BYTES
        return self.data[at : at + KEY_BYTES]

    def find(self, first: int, end: int, key: tuple[int, int]) -> int:
        """Return the index of the first entry in first…end whose key is at least `key`, or `end`."""
        wanted, data = KEY.pack(*key), self.data
        return bisect_left(
            range(end), wanted, first, end, key=lambda each: data[each * ENTRY_BYTES : each * ENTRY_BYTES + KEY_BYTES]
        )


class FileRun(Run):
    """A run in a file, of which each block is verified when it is read."""

    __slots__ = ("_block", "_block_number", "_checksums", "_name", "_starts", "file", "is_synced")

    def __init__(
        self,
        name: str,
        file: RunFile,
        sections: Sequence[Section],
        checksums: Sequence[int],
        starts: bytes,
        *,
        is_plain: bool,
    ) -> None:
        """`starts` contains the first key of each block; empty before `verify`."""
        super().__init__(b"", sections, is_plain=is_plain)
        self._use_starts(starts)
        self._name = name
        self.file = file
        self._checksums = checksums
        self.is_synced = False
        """Whether the content is on disk."""
        self._block = b""
        self._block_number = -1

    @property
    def name(self) -> str:
        """Name of the file."""
        return self._name

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        tables = len(self._checksums) * _CRC_BYTES + len(self.sections) * _SECTION.size
        return HEADER_BYTES + self.count * ENTRY_BYTES + tables

    def read(self, first: int, count: int) -> bytes:
        """Return packed entries. OSError, TimelineDamagedError."""
        block, last = first // BLOCK_ENTRIES, (first + count - 1) // BLOCK_ENTRIES
        data = self._block_at(block) if block == last else self._verified(block, last - block + 1)
        at = (first - block * BLOCK_ENTRIES) * ENTRY_BYTES
        return data[at : at + count * ENTRY_BYTES]

    def _block_at(self, block: int) -> bytes:
        """Return a block, verified, which is kept until another one is read. OSError, TimelineDamagedError."""
        if block != self._block_number:
            self._block, self._block_number = self._verified(block, 1), block
        return self._block

    def _verified(self, block: int, blocks: int) -> bytes:
        wanted = min(blocks * BLOCK_BYTES, self.count * ENTRY_BYTES - block * BLOCK_BYTES)
        data = self.file.pread(wanted, HEADER_BYTES + block * BLOCK_BYTES)
        for number, at in enumerate(range(0, wanted, BLOCK_BYTES), block):
            if crc32(data[at : at + BLOCK_BYTES]) != self._checksums[number]:
                raise TimelineDamagedError(f"block {number} of {self._name} does not match its checksum")
        return data

    def find(self, first: int, end: int, key: tuple[int, int]) -> int:
        """Return the index as `Run.find` does; reads one block. OSError, TimelineDamagedError."""
        wanted, starts = KEY.pack(*key), self._starts
        if first >= end:
            return first
        if not starts:
            return bisect_left(range(end), wanted, first, end, key=self._key_bytes)
        # The first block that begins in the range and not before the key.
        low, high = first // BLOCK_ENTRIES + 1, (end - 1) // BLOCK_ENTRIES + 1
        block = bisect_left(
            range(high), wanted, low, high, key=lambda each: starts[each * KEY_BYTES : (each + 1) * KEY_BYTES]
        )
        before = (block - 1) * BLOCK_ENTRIES
        low, high = max(first - before, 0), min(end - before, BLOCK_ENTRIES)
        data = self._block_at(block - 1)
        return before + bisect_left(
            range(high), wanted, low, key=lambda each: data[each * ENTRY_BYTES : each * ENTRY_BYTES + KEY_BYTES]
        )

    def _key_bytes(self, index: int) -> bytes:
        # Unverified: the entry is then read with the checksum of its block.
        data = self.file.pread(KEY_BYTES, HEADER_BYTES + index * ENTRY_BYTES)
        if len(data) < KEY_BYTES:
            raise TimelineDamagedError(f"{self._name} ends before entry {index}")
        return data

    def verify(self) -> None:
        """Read all entries. OSError, TimelineDamagedError."""
        starts = bytearray()
        identities = None if self.is_plain else Identities(self.count)
        for block in range(0, len(self._checksums), _READ_BLOCKS):
            data = self._verified(block, min(_READ_BLOCKS, len(self._checksums) - block))
            _add_starts(starts, data)
            if identities is not None:
                identities.add(data)
        self._use_starts(bytes(starts))
        self.identities = identities

    def _use_starts(self, starts: bytes) -> None:
        self._starts = starts
        self.lowest, self.highest = _sampled_identities(starts, KEY_BYTES)


def open_run(name: str, file: RunFile, *, is_plain: bool) -> FileRun:
    """Return the run in a file, whose header and tables are verified. OSError, TimelineDamagedError."""
    header = file.pread(HEADER_BYTES, 0)
    if len(header) < HEADER_BYTES:
        raise TimelineDamagedError(f"{name} has no complete header")
    magic, count, section_count, stated = _HEADER.unpack_from(header)
    blocks = -(-count // BLOCK_ENTRIES)
    tail_bytes = blocks * _CRC_BYTES + section_count * _SECTION.size
    if magic != _MAGIC or count >= 1 << 40 or section_count > count:
        raise TimelineDamagedError(f"{name} does not begin like a run")
    tail = file.pread(tail_bytes, HEADER_BYTES + count * ENTRY_BYTES)
    if len(tail) < tail_bytes or _checksum(count, section_count, tail) != stated:
        raise TimelineDamagedError(f"the tables of {name} do not match their checksum")
    checksums = struct.unpack_from(f">{blocks}I", tail)
    sections = sections_of(_SECTION.iter_unpack(tail[blocks * _CRC_BYTES :]))
    if (sections[-1].end if sections else 0) != count:
        raise TimelineDamagedError(f"the sections of {name} have another number of entries than the file")
    run = FileRun(name, file, sections, array("I", checksums), b"", is_plain=is_plain)
    run.is_synced = True
    return run


class RunWriter:
    """Collects the entries of a new run in memory, or writes them to a file."""

    def __init__(self, name: str = "", file: RunFile | None = None, identities: Identities | None = None) -> None:
        """`identities` is an empty set for a run in a file that is not plain."""
        self.name = name
        """Name of the file; empty in memory."""
        self._file = file
        self._identities = identities
        self._pending = bytearray()
        self._written = 0
        self._checksums = array("I")
        self._starts = bytearray()
        self._counts: list[list[int]] = []

    def append(self, partition: int, data: bytes) -> None:
        """Append packed entries, in order. OSError."""
        if not self._counts or self._counts[-1][0] != partition:
            self._counts.append([partition, 0])
        self._counts[-1][1] += len(data) // ENTRY_BYTES
        self._pending += data
        if self._identities is not None:
            self._identities.add(data)
        if self._file is not None and len(self._pending) >= BLOCK_BYTES:
            self._write(len(self._pending) // BLOCK_BYTES * BLOCK_BYTES)

    def _write(self, size: int) -> None:
        assert self._file is not None
        piece = bytes(self._pending[:size])
        self._file.pwrite(piece, HEADER_BYTES + self._written)
        for at in range(0, size, BLOCK_BYTES):
            self._checksums.append(crc32(piece[at : at + BLOCK_BYTES]))
        _add_starts(self._starts, piece)
        self._written += size
        del self._pending[:size]

    def finish(self, *, is_plain: bool) -> Run:
        """Return the run. OSError."""
        sections = sections_of((partition, count) for partition, count in self._counts)
        if self._file is None:
            return Run(bytes(self._pending), sections, is_plain=is_plain)
        self._write(len(self._pending))
        count = sections[-1].end if sections else 0
        tail = struct.pack(f">{len(self._checksums)}I", *self._checksums) + b"".join(
            _SECTION.pack(section.partition, section.end - section.first) for section in sections
        )
        self._file.pwrite(tail, HEADER_BYTES + self._written)
        header = _HEADER.pack(_MAGIC, count, len(sections), _checksum(count, len(sections), tail))
        self._file.pwrite(header.ljust(HEADER_BYTES, b"\0"), 0)
        run = FileRun(self.name, self._file, sections, self._checksums, bytes(self._starts), is_plain=is_plain)
        run.identities = self._identities
        return run


def _sampled_identities(data: bytes, distance_bytes: int) -> tuple[int, int]:
    """Return the lowest and the highest identity of some packed entries or keys at this distance."""
    step = max(len(data) // distance_bytes // _SAMPLED, 1) * distance_bytes
    identities = [KEY.unpack_from(data, at)[1] for at in range(0, len(data), step)]
    return min(identities, default=0), max(identities, default=0)


def _add_starts(starts: bytearray, data: bytes) -> None:
    """Add the first key of each block in `data`."""
    for at in range(0, len(data), BLOCK_BYTES):
        starts += data[at : at + KEY_BYTES]


def _checksum(count: int, section_count: int, tail: bytes) -> int:
    return crc32(tail, crc32(_HEADER.pack(_MAGIC, count, section_count, 0)))
