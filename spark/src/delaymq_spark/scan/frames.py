"""Positions of records in a part of the log, found many at a time.

Records form a chain: each size leads to the next record. Following it alone would take one step of Python per
message. Therefore, a window of the log is divided into stripes; each is searched for a place that looks like a record
(magic, and the record's own physical offset), and the chains from all of these places are followed in parallel, one
numpy step for all. A chain that arrives exactly where the next one started proves the next one correct, beginning
with the first chain, whose start is known. If one arrives elsewhere (a body looked like a record), it continues from
there. No guess ever becomes a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from delaymq.message.errors import RecordError
from delaymq.message.flags import BORN_HOST_IPV6, STORE_HOST_IPV6
from delaymq.message.names import MAX_TOPIC_LENGTH
from delaymq.message.record import (
    AFTER_STORE_HOST_BYTES,
    BLANK_BYTES,
    BLANK_MAGIC,
    BODY_LENGTH_BYTES,
    BORN_HOST_AT,
    ENCODED_MAGIC,
    FIXED_BYTES,
    IPV4_HOST_BYTES,
    IPV6_EXTRA_BYTES,
    MAGIC_AT,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    PROPERTIES_LENGTH_BYTES,
    SIZE_AND_MAGIC,
    STORE_TIMESTAMP_BYTES,
    SYS_FLAG_AT,
    TOPIC_LENGTH_BYTES,
    decode_record,
)
from delaymq.store.reader import is_torn

STRIPE_BYTES: Final = 32_768
MAX_RESTARTS: Final = 4
"""A body full of things that look like records must not make the walk quadratic."""
MAX_CANDIDATES: Final = 8
"""Candidates checked in a stripe before it is read together with the preceding one."""

Positions = npt.NDArray[np.int64]
Integers = npt.NDArray[np.int64]


class Window:
    """A piece of the log in memory, and its numbers at any byte.

    `i4[p]` is the big-endian number of 4 bytes at byte p of the window, for one p or an array of them.
    """

    def __init__(self, data: bytearray, used_bytes: int, offset: int, segment_base: int) -> None:
        self.data = data
        self.used_bytes = used_bytes
        self.offset = offset
        """Physical offset of its first byte."""
        self.segment_base = segment_base
        self.u1 = np.frombuffer(data, np.uint8, used_bytes)
        self.i2 = _at_any_byte(data, used_bytes, ">i2")
        self.i4 = _at_any_byte(data, used_bytes, ">i4")
        self.u4 = _at_any_byte(data, used_bytes, ">u4")
        self.i8 = _at_any_byte(data, used_bytes, ">i8")


def _at_any_byte(data: bytearray, used_bytes: int, kind: str) -> npt.NDArray[np.signedinteger]:
    count = max(0, used_bytes - np.dtype(kind).itemsize + 1)
    return np.ndarray((count,), kind, data, strides=(1,))


@dataclass(frozen=True, slots=True)
class Frames:
    """Records of a window: each array has one element per record; positions are bytes in the window."""

    position: Positions
    size: Integers
    sys_flag: Integers
    store_time_at: Positions
    """Position of the store time; the rest of the header starts 8 bytes later, after the store host."""
    body_at: Positions
    body_bytes: Integers
    topic_at: Positions
    topic_bytes: Integers
    properties_at: Positions
    properties_bytes: Integers

    def __len__(self) -> int:
        return len(self.position)

    def where(self, mask: npt.NDArray[np.bool_]) -> Frames:
        """Return the records selected by the mask."""
        return Frames(*(getattr(self, name)[mask] for name in Frames.__slots__))

    def first(self, count: int) -> Frames:
        """Return the first `count` records."""
        return self.between(0, count)

    def between(self, begin: int, end: int) -> Frames:
        """Return records `begin` to `end` - 1."""
        if begin == 0 and end >= len(self):
            return self
        return Frames(*(getattr(self, name)[begin:end] for name in Frames.__slots__))


def frames_of(window: Window, start: int) -> tuple[Frames, int]:
    """Return all consecutive valid records from byte `start` on, and the end of the last one.

    What follows is the end of the window, an incomplete record, a blank record, or no record: `problem_at`
    distinguishes them.
    """
    frames = _checked(window, _chain(window, start))
    return frames, int(frames.position[-1] + frames.size[-1]) if len(frames) else start


def problem_at(window: Window, position: int, segment_end: int) -> str | None:
    """Return why no record starts at `position`; None: more bytes than the window are required.

    An empty text: a blank record closes the segment. `segment_end`: physical offset after the segment.
    """
    left = segment_end - window.offset - position
    if left < BLANK_BYTES:
        return ""
    available = window.used_bytes - position
    if available < SIZE_AND_MAGIC.size:
        return None
    size, magic = SIZE_AND_MAGIC.unpack_from(window.data, position)
    if magic == BLANK_MAGIC and size == left:
        return ""
    if magic != MESSAGE_MAGIC or not FIXED_BYTES <= size <= left:
        return f"size {size} and magic {magic:#010x} do not form a record header" + _hint(magic)
    if size > available:
        return None
    offset = window.offset + position
    try:
        record = decode_record(memoryview(window.data)[position : position + size], check_crc=False)
    except RecordError as error:
        return str(error)
    if record.physical_offset != offset:
        return f"the record states physical offset {record.physical_offset}"
    return "part of its properties was never written"


def _hint(magic: int) -> str:
    if magic == 0:
        return " (nothing was written here)"
    return " (a record of RocketMQ 5)" if magic == MESSAGE_MAGIC_V2 else ""


def _chain(window: Window, start: int) -> Positions:
    """Return positions from `start` on, each derived from the size of the previous record; only sizes are checked."""
    found: list[Positions] = []
    for _ in range(MAX_RESTARTS):
        lanes = _lanes(window, start)
        positions, ends = _side_by_side(window, lanes)
        proven = ends[:-1] == lanes[1:]
        if proven.all():
            found.append(positions)
            return np.concatenate(found)
        first_wrong = int(np.argmin(proven))
        found.append(positions[: np.searchsorted(positions, lanes[first_wrong + 1])])
        start = int(ends[first_wrong])
        if start <= lanes[first_wrong + 1]:
            # It ended before the next one started: the window's chain is broken there.
            return np.concatenate(found)
    found.append(_one_by_one(window, start))
    return np.concatenate(found)


def _lanes(window: Window, start: int) -> Positions:
    """Return `start`, and a place in each later stripe that looks like a record."""
    lanes = [start]
    find, offsets = window.data.find, window.i8
    last = window.used_bytes - FIXED_BYTES
    for stripe in range(start + STRIPE_BYTES, last, STRIPE_BYTES):
        end = min(stripe + STRIPE_BYTES, last)
        at = find(ENCODED_MAGIC, stripe, end)
        for _ in range(MAX_CANDIDATES):
            if at < 0:
                break
            candidate = at - MAGIC_AT
            if offsets[candidate + PHYSICAL_OFFSET_AT] == window.offset + candidate:
                lanes.append(candidate)
                break
            at = find(ENCODED_MAGIC, at + 1, end)
    return np.array(lanes, np.int64)


def _side_by_side(window: Window, lanes: Positions) -> tuple[Positions, Positions]:
    """Return the sorted positions of all lanes, each followed to the start of the next, and the end of each."""
    limits = np.append(lanes[1:], window.used_bytes)
    ends = lanes.copy()
    steps: list[Positions] = []
    active = np.arange(len(lanes))
    current, limit = lanes, limits
    last_size_at = window.used_bytes - FIXED_BYTES
    while len(active):
        inside = (current < limit) & (current <= last_size_at)
        if not inside.all():
            ends[active] = current
            active, current, limit = active[inside], current[inside], limit[inside]
            if not len(active):
                break
        size = window.i4[current]
        following = current + size
        sound = (size >= FIXED_BYTES) & (following <= window.used_bytes)
        if not sound.all():
            ends[active] = current
            active, current, limit, following = active[sound], current[sound], limit[sound], following[sound]
        steps.append(current)
        current = following
    positions = np.concatenate(steps) if steps else np.empty(0, np.int64)
    positions.sort()
    return positions, ends


def _one_by_one(window: Window, start: int) -> Positions:
    positions = []
    data, end = window.data, window.used_bytes
    unpack = SIZE_AND_MAGIC.unpack_from
    while end - start >= FIXED_BYTES:
        size, magic = unpack(data, start)
        if magic != MESSAGE_MAGIC or size < FIXED_BYTES or start + size > end:
            break
        positions.append(start)
        start += size
    return np.array(positions, np.int64)


def _checked(window: Window, position: Positions) -> Frames:
    """Return the records up to the first invalid one, by the same rules as `delaymq.store.reader`."""
    size = window.i4[position].astype(np.int64)
    sys_flag = window.i4[position + SYS_FLAG_AT].astype(np.int64)
    sound = (window.u4[position + MAGIC_AT] == MESSAGE_MAGIC) & (
        window.i8[position + PHYSICAL_OFFSET_AT] == position + window.offset
    )
    if np.any(sys_flag & (BORN_HOST_IPV6 | STORE_HOST_IPV6)):
        born_extra = np.where(sys_flag & BORN_HOST_IPV6, IPV6_EXTRA_BYTES, 0)
        store_extra = np.where(sys_flag & STORE_HOST_IPV6, IPV6_EXTRA_BYTES, 0)
        sound &= size >= FIXED_BYTES + born_extra + store_extra
        store_time_at = position + (BORN_HOST_AT + IPV4_HOST_BYTES) + born_extra
        body_at = store_time_at + (STORE_TIMESTAMP_BYTES + IPV4_HOST_BYTES + AFTER_STORE_HOST_BYTES) + store_extra
    else:
        store_time_at = position + (BORN_HOST_AT + IPV4_HOST_BYTES)
        body_at = store_time_at + (STORE_TIMESTAMP_BYTES + IPV4_HOST_BYTES + AFTER_STORE_HOST_BYTES)
    end = position + size
    # Positions derived from a wrong length are clamped; such a record is invalid anyway.
    last_body_length_at = window.used_bytes - BODY_LENGTH_BYTES
    last = window.used_bytes - PROPERTIES_LENGTH_BYTES
    body_bytes = window.i4[np.minimum(body_at - BODY_LENGTH_BYTES, last_body_length_at)].astype(np.int64)
    topic_at = body_at + body_bytes + TOPIC_LENGTH_BYTES
    sound &= (body_bytes >= 0) & (topic_at + PROPERTIES_LENGTH_BYTES <= end)
    topic_bytes = window.u1[np.clip(topic_at - TOPIC_LENGTH_BYTES, 0, last)].astype(np.int64)
    properties_at = topic_at + topic_bytes + PROPERTIES_LENGTH_BYTES
    sound &= (topic_bytes <= MAX_TOPIC_LENGTH) & (properties_at <= end)
    properties_bytes = window.i2[np.clip(properties_at - PROPERTIES_LENGTH_BYTES, 0, last)].astype(np.int64)
    sound &= (properties_bytes >= 0) & (properties_at + properties_bytes == end)
    frames = Frames(
        position, size, sys_flag, store_time_at, body_at, body_bytes, topic_at, topic_bytes, properties_at,
        properties_bytes,
    )  # fmt: skip
    if not sound.all():
        frames = frames.first(int(np.argmin(sound)))
    torn = _first_torn(window, frames)
    return frames if torn is None else frames.first(torn)


def _first_torn(window: Window, frames: Frames) -> int | None:
    """Return the first record whose properties look as if a page of them was never written."""
    gathered = gather(window.data, frames.properties_at, frames.properties_bytes)
    text = memoryview(gathered.buffers()[2] or b"")
    if bytes(text).find(b"\0") < 0:
        return None
    at_in_file = frames.properties_at + (window.offset - window.segment_base)
    for number, properties in enumerate(gathered.to_pylist()):
        if b"\0" in properties and is_torn(properties, int(at_in_file[number])):
            return number
    return None


def gather(data: bytearray | pa.Buffer, at: Positions, count: Integers) -> pa.BinaryArray:
    """Return `count[n]` bytes from byte `at[n]` on, for each n; positions are ascending and do not overlap.

    The data is viewed, without a copy, as an array of wanted and other pieces; Arrow copies the wanted ones.
    """
    if not len(at):
        return pa.array([], pa.binary())
    bounds = np.empty(2 * len(at), np.int32)
    bounds[0::2] = at
    bounds[1::2] = at + count
    pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return pieces.take(pa.array(np.arange(0, len(bounds) - 1, 2, dtype=np.int32)))
