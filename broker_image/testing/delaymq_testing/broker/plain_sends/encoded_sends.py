"""Records, entries, keys and responses that the twin of the kernel `SendEncoder` has made for requests."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from delaymq.message.hashing import index_key_hash, tags_code
from delaymq.message.names import KEYS, TAGS, UNIQUE_KEY
from delaymq.message.record import encode_record
from delaymq.store.consume_queue import ENTRY
from delaymq.store.index.index_file import INDEXED_KEY
from delaymq.store.index.key_index import indexed_keys
from delaymq.store.plain_runs import Sent, SentDelay, TransactionStep

MAX_QUEUES: Final = 64
"""Maximum number of queues of the requests of one call."""

Answer = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, str]
"""Parts of a response: up to the id's offset, between it and the queue id, between it and the queue offset, up to the
opaque, and the end; with a recall handle, up to it, and up to the opaque; name of the broker in the handle."""


class _Queue(NamedTuple):
    """Records for one queue."""

    first: int
    entries: list[bytes]


class NewRecord(NamedTuple):
    """A record without its place."""

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared: int
    body: bytes
    raw: bytes
    properties: Mapping[str, str]
    due_ms: int | None = None
    """Due time, which the entry contains in place of the tags code."""

    def encoded(self, number: int, offset: int, store_ms: int) -> bytes:
        """The record at a queue offset and a physical offset."""
        return encode_record(
            self.topic.encode(), self.queue_id, number, offset, self.flag, self.sys_flag, self.born_ms, self.born_host,
            store_ms, self.store_host, self.reconsume_times, self.prepared, self.body, self.raw,
        )  # fmt: skip


class _Sums:
    """Numbers and sizes for one topic."""

    def __init__(self) -> None:
        self.messages = self.bytes = self.elsewhere = self.copies = self.copied_bytes = 0

    def row(self) -> tuple[int, int, int, int, int]:
        return self.messages, self.bytes, self.elsewhere, self.copies, self.copied_bytes


class Written:
    """What the requests so far have caused."""

    def __init__(self, queues: Mapping[tuple[str, int], Any], start: int, store_ms: int, room: int) -> None:
        self.queues = queues
        self.start = start
        self.store_ms = store_ms
        self.room = room
        self.places: dict[tuple[str, int], _Queue] = {}
        self.sums: dict[str, _Sums] = {}
        self.records: list[bytes] = []
        self.keys: list[bytes] = []
        self.responses: list[bytes] = []
        self.steps: list[TransactionStep] = []
        self.delayed: list[SentDelay] = []
        self.at = self.last_at = self.read_bytes = self.body_bytes = 0

    def add(self, *records: NewRecord) -> list[tuple[int, int, int]] | None:
        """Append records; return queue offset, physical offset and size of each. None, without a change: not all."""
        added = {(record.topic, record.queue_id) for record in records} - self.places.keys()
        if len(self.places) + len(added) > MAX_QUEUES or not added <= self.queues.keys():
            return None
        sizes = [len(record.encoded(0, 0, 0)) for record in records]
        if self.at + sum(sizes) > self.room:
            return None
        return [self._put(record, size) for record, size in zip(records, sizes, strict=True)]

    def _put(self, record: NewRecord, size: int) -> tuple[int, int, int]:
        key = record.topic, record.queue_id
        queue = self.places.setdefault(key, _Queue(self.queues[key].max_number, []))
        offset, number = self.start + self.at, queue.first + len(queue.entries)
        code = tags_code(record.properties.get(TAGS, "")) if record.due_ms is None else record.due_ms
        queue.entries.append(ENTRY.pack(offset, size, code))
        texts = [record.properties.get(UNIQUE_KEY, ""), *indexed_keys(record.properties.get(KEYS, ""))]
        hashes = [index_key_hash(record.topic, text) for text in texts if text]
        self.keys += [INDEXED_KEY.pack(each, offset, self.store_ms) for each in hashes]
        self.records.append(record.encoded(number, offset, self.store_ms))
        self.last_at, self.at = self.at, self.at + size
        return number, offset, size

    def next_number(self, topic: str, queue_id: int) -> int | None:
        """Return the queue offset of the next record of a queue; None if it does not exist."""
        key = topic, queue_id
        if place := self.places.get(key):
            return place.first + len(place.entries)
        number: int | None = self.queues[key].max_number if key in self.queues else None
        return number

    def sums_of(self, topic: str) -> _Sums:
        return self.sums.setdefault(topic, _Sums())

    def sent(self, read: int) -> Sent:
        stretches = []
        for (topic, queue_id), (first, entries) in self.places.items():
            first_at, last = ENTRY.unpack(entries[0])[0], ENTRY.unpack(entries[-1])[0]
            stretches.append((topic, queue_id, first, len(entries), first_at, last, b"".join(entries)))
        sums = [(topic, *each.row()) for topic, each in self.sums.items() if any(each.row())]
        joined = [b"".join(each) for each in (self.records, self.keys, self.responses)]
        return (
            read, self.last_at, joined[0], joined[1], stretches, sums, joined[2], self.steps, self.delayed,
            self.body_bytes,
        )  # fmt: skip


def response_of(answer: Answer, offset: int, queue_id: int, queue_offset: int, opaque: int, handle: str) -> bytes:
    """Return a response; `handle` is the recall handle before it is encoded, empty without one."""
    to_id, to_queue_id, to_queue_offset, to_opaque, end, to_handle, after_handle, _ = answer
    if handle:
        to_opaque = to_handle + urlsafe_b64encode(handle.encode()) + after_handle
    header = b"%b%016X%b%d%b%d%b%d%b" % (
        to_id, offset, to_queue_id, queue_id, to_queue_offset, queue_offset, to_opaque, opaque, end,
    )  # fmt: skip
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
