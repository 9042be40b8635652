"""Unsettled half messages of transactions: what retention must keep of them.

Transactions come with a later version, but a store that RocketMQ wrote may hold some: they are kept until a broker that
serves transactions settles them. Nobody can add or settle one here, so one look at the start tells it all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from delaymq.message.names import HALF_TOPIC, OP_HALF_TOPIC
from delaymq.store.consume_queue import BLANK_SIZE, ENTRY
from delaymq.store.message_store import MessageStore

PROGRESS_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Its consumer offsets in both topics say up to where RocketMQ's check-back has settled everything."""
_ENTRIES_AT_ONCE: Final = 512

Progress = Callable[[str, str, int], int | None]
"""The consumer offset of (topic, group, queue id), None without one."""


def oldest_half_message(store: MessageStore, progress: Progress) -> int | None:
    """Physical offset of the oldest half message that no op mark settles; None without one."""
    settled = _settled(store, progress)
    for offset, physical_offset in _entries(store, HALF_TOPIC, progress):
        if offset not in settled:
            return physical_offset
    return None


def _settled(store: MessageStore, progress: Progress) -> set[int]:
    """Queue offsets of half messages that were committed or rolled back: an op mark's body is one in ASCII."""
    settled = set()
    for _, physical_offset in _entries(store, OP_HALF_TOPIC, progress):
        record = store.record_at(physical_offset)
        if record is not None and record.body.isdigit():
            settled.add(int(record.body[:20]))
    return settled


def _entries(store: MessageStore, topic: str, progress: Progress) -> Iterator[tuple[int, int]]:
    """Queue offset and physical offset of each entry of queue 0 from the progress on."""
    first, end = store.queue_bounds(topic, 0)
    offset = max(first, progress(topic, PROGRESS_GROUP, 0) or 0)
    while offset < end and (entries := store.read_entries(topic, 0, offset, _ENTRIES_AT_ONCE)):
        for physical_offset, size, _ in ENTRY.iter_unpack(entries):
            if 0 < size < BLANK_SIZE:
                yield offset, physical_offset
            offset += 1
