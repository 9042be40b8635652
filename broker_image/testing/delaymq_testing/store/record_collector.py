"""Twin of the kernel `collect_matching`: records of a queue for a pull (docs/kernels.md).

Only tests use it. Without the kernel, records are read one by one (`broker.pull.queue_reader`).
"""

from __future__ import annotations

from typing import Final

from delaymq.broker.filters.expressions import CODE_BYTES
from delaymq.message.record import FIXED_BYTES, MESSAGE_MAGIC, PLACE
from delaymq.store.consume_queue import ENTRY

_LOW_BITS: Final = 0xFFFFFFFF


def collect_matching(
    entries: bytes, codes: bytes, log: bytes, base: int, end: int, number: int, limit: int, max_bytes: int
) -> tuple[int, int, bytes] | None:
    """Return how many of a queue's `entries` were examined, how many of them match, and the records that these name.

    An entry matches if the low 32 bits of its tags code are among `codes`, in ascending order; any entry if there are
    none. The entry with which there would be more than `limit` records, or more than `max_bytes`, is not examined any
    more, unless it is the first one that matches. `log` contains a segment from physical offset `base` on, and `end` is
    the physical offset up to which its records may be read. `number` is the queue offset of the first entry. None: a
    record is elsewhere, or its head differs from what the entry states.
    """
    if end < base:
        return None
    wanted = {int.from_bytes(codes[at : at + CODE_BYTES]) for at in range(0, len(codes), CODE_BYTES)}
    readable = log[: end - base]
    found: list[bytes] = []
    total, examined = 0, 0
    for at, (offset, size, code) in enumerate(ENTRY.iter_unpack(entries)):
        if not wanted or code & _LOW_BITS in wanted:
            record = readable[offset - base : offset - base + size] if offset >= base and size >= FIXED_BYTES else b""
            if len(record) < max(size, FIXED_BYTES) or PLACE.unpack_from(record) != (size, MESSAGE_MAGIC, number + at):
                return None
            if found and (len(found) >= limit or total + size > max_bytes):
                break
            total += size
            found.append(record)
        examined = at + 1
    return examined, len(found), b"".join(found)
