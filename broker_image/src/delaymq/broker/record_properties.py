"""The raw properties of stored records, read without their bodies where these are large."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from delaymq.message import flags
from delaymq.message.record import HEAD, MESSAGE_MAGIC

# Records of a queue often lie close together: what is read at a time then, and up to which distance it pays.
WINDOW_BYTES: Final = 32 * 1024
# A record's tail is read apart from its head when its body is larger than this.
LARGE_RECORD_BYTES: Final = 8 * 1024
_IPV6_EXTRA_BYTES: Final = 12

# Size, magic, and behind five fields the sys flag.
_BEGINNING: Final = struct.Struct(">iI28xi")
_BODY_LENGTH: Final = struct.Struct(">i")
_PROPERTIES_LENGTH: Final = struct.Struct(">h")


class PropertyReader:
    """Reads records one by one, in the order of a queue. `read(physical offset, size)` gives bytes of the log."""

    __slots__ = ("_base", "_read", "_window")

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._base = 0
        self._window = b""

    def __call__(self, physical_offset: int, size: int) -> bytes | None:
        """The property bytes of the record that lies there; None when what lies there is no such record."""
        at = physical_offset - self._base
        if at < 0 or at + size > len(self._window):
            if size > LARGE_RECORD_BYTES:
                return self._of_large(physical_offset, size)
            self._move(physical_offset, size)
            at = 0
        window = self._window
        if len(window) - at < HEAD.size:
            return None
        begin = _topic_at(window, at, size)
        if begin < 0 or begin >= at + size:
            return None
        return _last_part(window, begin, at + size)

    def _move(self, physical_offset: int, size: int) -> None:
        is_near = 0 <= physical_offset - self._base <= WINDOW_BYTES
        window = self._read(physical_offset, WINDOW_BYTES) if is_near and self._window else b""
        # Nothing is read where the window crosses the end of the log or of a file.
        self._window = window or self._read(physical_offset, size)
        self._base = physical_offset

    def _of_large(self, physical_offset: int, size: int) -> bytes | None:
        head = self._read(physical_offset, HEAD.size + 2 * _IPV6_EXTRA_BYTES)
        begin = _topic_at(head, 0, size) if len(head) >= HEAD.size else -1
        if begin < 0 or begin >= size:
            return None
        tail = self._read(physical_offset + begin, size - begin)
        return _last_part(tail, 0, len(tail))


def _topic_at(data: bytes, at: int, size: int) -> int:
    """Where the length of the topic stands behind the body of the record at `at`; -1 for no record of this size."""
    stated, magic, sys_flag = _BEGINNING.unpack_from(data, at)
    if stated != size or magic != MESSAGE_MAGIC:
        return -1
    head_bytes = HEAD.size
    if sys_flag & flags.HOST_MASK:
        for host in (flags.BORN_HOST_IPV6, flags.STORE_HOST_IPV6):
            head_bytes += _IPV6_EXTRA_BYTES if sys_flag & host else 0
    if at + head_bytes > len(data):
        return -1
    body_length: int = _BODY_LENGTH.unpack_from(data, at + head_bytes - 4)[0]
    return at + head_bytes + body_length if body_length >= 0 else -1


def _last_part(data: bytes, topic_at: int, end: int) -> bytes | None:
    """The properties, which end a record, behind the topic."""
    length_at = topic_at + 1 + data[topic_at] if topic_at < len(data) else end
    if length_at + 2 > end:
        return None
    begin = length_at + 2
    if begin + _PROPERTIES_LENGTH.unpack_from(data, length_at)[0] != end:
        return None
    return data[begin:end]
