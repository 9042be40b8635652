"""Search for records that a filter may accept, in a window of the log."""

from __future__ import annotations

from mmap import mmap
from typing import Final

from delaymq import kernels
from delaymq.message import flags
from delaymq.message.record import HEAD, MESSAGE_MAGIC, OUTLINE
from delaymq.store.consume_queue import ENTRY

_HEAD_AT: Final = OUTLINE.unpack_from


def count_without_twin(
    window: bytes | mmap, base: int, entries: bytes, place: int, needle: bytes, most: int, most_searched: int
) -> int:
    """Return how many entries of a queue, from the number `place` on and at most `most`, name records without `needle`.

    `window` are bytes of the log from physical offset `base` on. The first entry whose record may contain the needle in
    its topic or properties, is not completely in the window, is damaged, has an IPv6 host, or has a topic and
    properties of more than `most_searched` bytes, ends the count. Twin of the kernel `count_without`.
    """
    size_of_window, count = len(window), 0
    for physical_offset, size, _ in ENTRY.iter_unpack(entries[place * ENTRY.size : (place + most) * ENTRY.size]):
        at = physical_offset - base
        end = at + size
        if at < 0 or size < HEAD.size or end > size_of_window:
            break
        stated, magic, sys_flag, body_length = _HEAD_AT(window, at)
        topic_at = at + HEAD.size + body_length
        if (
            stated != size
            or magic != MESSAGE_MAGIC
            or sys_flag & flags.HOST_MASK
            or body_length < 0
            or not topic_at < end <= topic_at + most_searched
            or window.find(needle, topic_at, end) >= 0
        ):
            break
        count += 1
    return count


count_without: Final = kernels.choose("count_without", count_without_twin)
