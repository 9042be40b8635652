"""Search for records that a filter may accept, in a window of the log."""

from __future__ import annotations

from mmap import mmap
from typing import Final, TypeAlias

from delaymq import kernels
from delaymq.message import flags
from delaymq.message.record import (
    HEAD,
    MESSAGE_MAGIC,
    OUTLINE,
    PROPERTIES_LENGTH,
    PROPERTIES_LENGTH_BYTES,
    TAIL_LENGTHS_BYTES,
)
from delaymq.store.consume_queue import ENTRY

Found: TypeAlias = tuple[int, int, int]
"""Number of an entry, and where the properties of its record begin and end in the window."""

_HEAD_AT: Final = OUTLINE.unpack_from
_PROPERTIES_LENGTH_AT: Final = PROPERTIES_LENGTH.unpack_from


def properties_at(window: bytes | mmap, topic_at: int, end: int) -> int | None:
    """Return where the properties begin that follow a topic; None if they do not end where the record does."""
    begin = topic_at + TAIL_LENGTHS_BYTES + window[topic_at]
    if begin > end or _PROPERTIES_LENGTH_AT(window, begin - PROPERTIES_LENGTH_BYTES)[0] != end - begin:
        return None
    return begin


def find_needle_twin(
    window: bytes | mmap,
    base: int,
    entries: bytes,
    place: int,
    needle: bytes,
    most_skipped: int,
    most_searched: int,
    most_found: int,
) -> tuple[list[Found], int]:
    """Return the entries of a queue, from the number `place` on, whose records contain `needle` in topic or properties,
    and the number of the entry that ends the search.

    `window` are bytes of the log from physical offset `base` on. The search ends before an entry whose record is not
    completely in the window, is damaged, has an IPv6 host, or has a topic and properties of more than `most_searched`
    bytes. It also ends behind `most_found` found records, and before a record that would be skipped if `most_skipped`
    were skipped already. Twin of the kernel `find_needle`.
    """
    size_of_window, found, first = len(window), list[Found](), place
    # Behind these, both limits are reached.
    last = place + most_skipped + most_found
    for physical_offset, size, _ in ENTRY.iter_unpack(entries[place * ENTRY.size : last * ENTRY.size]):
        at = physical_offset - base
        end = at + size
        if len(found) == most_found or at < 0 or size < HEAD.size or end > size_of_window:
            break
        stated, magic, sys_flag, body_length = _HEAD_AT(window, at)
        topic_at = at + HEAD.size + body_length
        if (
            stated != size
            or magic != MESSAGE_MAGIC
            or sys_flag & flags.HOST_MASK
            or body_length < 0
            or not topic_at < end <= topic_at + most_searched
        ):
            break
        if window.find(needle, topic_at, end) >= 0:
            begin = properties_at(window, topic_at, end)
            if begin is None:
                break
            found.append((place, begin, end))
        elif place - first - len(found) == most_skipped:
            break
        place += 1
    return found, place


find_needle: Final = kernels.choose("find_needle", find_needle_twin)
