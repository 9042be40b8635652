"""Twin of the kernel `LogScanner`: a scan of a piece of the log for plain records (docs/kernels.md).

Only tests use it: it is slower than reading one record at a time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final
from zlib import crc32

from delaymq.message import names
from delaymq.message.flags import HOST_MASK, TRANSACTION_MASK
from delaymq.message.hashing import index_key_hash, tags_code
from delaymq.message.properties import MAX_PROPERTIES_BYTES, PAIR_SEPARATOR, parse_properties
from delaymq.message.record import (
    BODY_CRC_MASK,
    FIXED_BYTES,
    HEAD,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
    PROPERTIES_LENGTH_BYTES,
    TOPIC_LENGTH_BYTES,
)
from delaymq.store.consume_queue import ENTRY
from delaymq.store.index.index_file import INDEXED_KEY
from delaymq.store.index.key_index import indexed_keys
from delaymq.store.recovery.plain_scan import MAX_MS, Scanned, Times

MAX_QUEUES: Final = 64
"""Maximum number of queues of a piece: they are searched one by one."""
MAX_PAIRS: Final = 64
"""Maximum number of properties of a plain record."""


class LogScanner:
    """Scanner that stops at records which concern others than queues and index."""

    def __init__(
        self,
        topics: Collection[str],
        ruled: Collection[str],
        texts: Collection[str],
        check_crc: bool,
        wants_entries: bool,
    ) -> None:
        """It stops at records of `topics`, with properties in `ruled`, and with one of `texts` in their properties.

        Without `wants_entries`, neither the names of properties nor their number matters.
        """
        self._topics = frozenset(topics)
        self._ruled = frozenset(ruled)
        self._texts = tuple(texts)
        self._check_crc = check_crc
        self._wants_entries = wants_entries

    def scan(self, piece: bytes, base: int, latest_ms: int, times: Times) -> Scanned:
        """Return what the plain records at the start of `piece`, which begins at physical offset `base`, contain.

        The scan ends before the first record that is incomplete, damaged, not plain, or not the next one of its queue.
        `latest_ms` is the highest store time that is believed, `times` are those of the records before.
        """
        at = records = last_crc = 0
        last_offset = -1
        found: dict[tuple[str, int], list[Any]] = {}
        keys: list[bytes] = []
        while (record := self._plain_record(piece, at, base, latest_ms)) is not None:
            size, crc, queue_id, queue_offset, stored_ms, topic, properties = record
            offset = base + at
            stretch = found.get((topic, queue_id))
            if stretch is None:
                if len(found) == MAX_QUEUES or queue_offset == MAX_MS:
                    break
                stretch = found[topic, queue_id] = [topic, queue_id, queue_offset, 0, offset, offset, bytearray()]
            elif queue_offset != stretch[2] + stretch[3] or queue_offset == MAX_MS:
                break
            stretch[3] += 1
            stretch[5] = offset
            if self._wants_entries:
                stretch[6] += ENTRY.pack(offset, size, tags_code(properties.get(names.TAGS, "")))
                keys += _keys_of(topic, properties, offset, stored_ms)
            last_offset, last_crc, times = offset, crc, (*times[1:], stored_ms)
            records += 1
            at += size
        stretches = [(*stretch[:6], bytes(stretch[6])) for stretch in found.values()]
        return at, records, last_offset, last_crc, times, stretches, b"".join(keys)

    def _plain_record(
        self, piece: bytes, at: int, base: int, latest_ms: int
    ) -> tuple[int, int, int, int, int, str, dict[str, str]] | None:
        """Return size, CRC, queue id, queue offset, store time, topic and properties of the record at `at`."""
        if len(piece) - at < HEAD.size:
            return None
        (
            size, magic, crc, queue_id, _, queue_offset, offset, sys_flag, _, _, stored_ms, _, _, _, body_bytes,
        ) = HEAD.unpack_from(piece, at)  # fmt: skip
        if (
            magic != MESSAGE_MAGIC
            or offset != base + at
            or sys_flag & (HOST_MASK | TRANSACTION_MASK)
            or not 0 <= stored_ms <= latest_ms
            or not FIXED_BYTES <= size <= len(piece) - at
            or body_bytes < 0
        ):
            return None
        body_at = at + HEAD.size
        tail = piece[body_at + body_bytes : at + size]
        if body_bytes > size - FIXED_BYTES or tail[0] > names.MAX_TOPIC_LENGTH:
            return None
        topic_end = TOPIC_LENGTH_BYTES + tail[0]
        raw = tail[topic_end + PROPERTIES_LENGTH_BYTES :]
        lengths = tail[topic_end : topic_end + PROPERTIES_LENGTH_BYTES]
        if len(raw) > MAX_PROPERTIES_BYTES or lengths != PROPERTIES_LENGTH.pack(len(raw)) or b"\0" in raw:
            return None
        if self._check_crc and crc32(piece[body_at : body_at + body_bytes]) & BODY_CRC_MASK != crc:
            return None
        try:
            topic, text = tail[TOPIC_LENGTH_BYTES:topic_end].decode(), raw.decode()
        except UnicodeDecodeError:
            return None
        if topic in self._topics or any(each in text for each in self._texts):
            return None
        if self._wants_entries and text.count(PAIR_SEPARATOR) >= MAX_PAIRS:
            return None
        properties = parse_properties(text) if self._wants_entries else {}
        if not self._ruled.isdisjoint(properties):
            return None
        return size, crc, queue_id, queue_offset, stored_ms, topic, properties


def _keys_of(topic: str, properties: dict[str, str], offset: int, stored_ms: int) -> list[bytes]:
    unique, more = properties.get(names.UNIQUE_KEY), properties.get(names.KEYS)
    keys = [] if unique is None else [unique]
    if more is not None:
        keys += [key for key in indexed_keys(more) if key]
    return [INDEXED_KEY.pack(index_key_hash(topic, key), offset, stored_ms) for key in keys]
