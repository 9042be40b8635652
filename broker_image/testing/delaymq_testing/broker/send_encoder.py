"""Twin of the kernel `SendEncoder`: plain sends and ends of transactions among received bytes (docs/kernels.md).

Only tests use it. Without the kernel, each request is decoded, admitted, appended and answered alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from delaymq.message.errors import RecordError
from delaymq.message.flags import (
    HOST_MASK,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from delaymq.message.hashing import index_key_hash, tags_code
from delaymq.message.marks import format_due
from delaymq.message.names import KEYS, MAX_TOPIC_LENGTH, TAGS, UNIQUE_KEY
from delaymq.message.properties import (
    MAX_PROPERTIES_BYTES,
    PAIR_SEPARATOR,
    encode_properties,
    parse_properties,
)
from delaymq.message.record import IPV4_HOST_BYTES, Record, decode_record, encode_record
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import FLAG_ONEWAY, Command
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    EndTransactionRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from delaymq.store.consume_queue import ENTRY
from delaymq.store.index.index_file import INDEXED_KEY
from delaymq.store.index.key_index import indexed_keys
from delaymq.store.plain_runs import Sent, SentDelay, TransactionStep

from delaymq_testing.broker.sends import INTEGER, frame_at, usual_command

MAX_PAIRS: Final = 64
"""Maximum number of properties of a message."""
MAX_QUEUES: Final = 64
"""Maximum number of queues of the requests of one call."""
MAX_READ_BYTES: Final = 256 * 1024
"""Maximum size of the half messages that one call reads."""
DUE_DIGITS: Final = 16

_is_integer = re.compile(INTEGER).fullmatch
_is_queue_id = re.compile(r"0|[1-9][0-9]{0,3}").fullmatch
_INTEGER_FIELDS: Final = "defghjl"
_ENDING_INTEGERS: Final = ("tranStateTableOffset", "commitLogOffset", "commitOrRollback")

Rules = tuple[str, str, tuple[str, str, str, str], Sequence[str], str, str, int]
"""Half topic, op topic, names of properties (half message, group, real topic, real queue id), names of further
properties that need rules in a half message, encoded properties of the op marks of a commit and of a rollback, maximum
size of the properties of a half message."""


DelayRules = tuple[str, str, str, str, str, Sequence[str], int]
"""Names of the delay level, the real topic, the real queue id, the due time and the schedule topic, names of properties
with which a delayed message needs rules, maximum size of its properties."""

Delays = tuple[tuple[int, ...], Mapping[str, Any], int]
"""Delay of each level in ms, topics whose delayed messages need rules, maximum size of the body of one that needs
none."""


class _Queue(NamedTuple):
    """Records for one queue."""

    first: int
    entries: list[bytes]


class _New(NamedTuple):
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

    def encoded(self, number: int, offset: int, store_ms: int) -> bytes:
        """The record at a queue offset and a physical offset."""
        return encode_record(
            self.topic.encode(), self.queue_id, number, offset, self.flag, self.sys_flag, self.born_ms, self.born_host,
            store_ms, self.store_host, self.reconsume_times, self.prepared, self.body, self.raw,
        )  # fmt: skip


class _Sums:
    """Numbers and sizes for one topic."""

    def __init__(self) -> None:
        self.messages = self.bytes = self.halves = self.copies = self.copied_bytes = 0

    def row(self) -> tuple[int, int, int, int, int]:
        return self.messages, self.bytes, self.halves, self.copies, self.copied_bytes


class _Written:
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
        self.at = self.last_at = self.read_bytes = 0

    def add(self, *records: _New) -> list[tuple[int, int, int]] | None:
        """Append records; return queue offset, physical offset and size of each. None, without a change: not all."""
        added = {(record.topic, record.queue_id) for record in records} - self.places.keys()
        if len(self.places) + len(added) > MAX_QUEUES or not added <= self.queues.keys():
            return None
        sizes = [len(record.encoded(0, 0, 0)) for record in records]
        if self.at + sum(sizes) > self.room:
            return None
        return [self._put(record, size) for record, size in zip(records, sizes, strict=True)]

    def _put(self, record: _New, size: int) -> tuple[int, int, int]:
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
        return read, self.last_at, joined[0], joined[1], stretches, sums, joined[2], self.steps, self.delayed


class SendEncoder:
    """Encoder of requests that need no rules but those given to the constructor."""

    def __init__(
        self,
        ruled: Collection[str],
        own_prefix: str,
        closed: Collection[str],
        retry_prefix: str,
        names: tuple[str, str],
        transactions: Rules,
        delays: DelayRules,
    ) -> None:
        """`ruled`: names of properties that need rules of the broker, as do those that start with `own_prefix`.

        `closed`: topics that need rules, as do those that start with `retry_prefix`. `names` are those of the
        properties that the broker removes and sets.
        """
        self._ruled = frozenset(ruled)
        self._own_prefix = own_prefix
        self._closed = frozenset(closed)
        self._retry_prefix = retry_prefix
        self._wait, self._cluster = names
        self._half_topic, self._op_topic, names_of_half, ruled_in_half, *marks, self._max_half = transactions
        self._prepared, self._group, self._real_topic, self._real_queue_id = names_of_half
        self._ruled_in_half = self._ruled.union(ruled_in_half) - {self._prepared}
        self._level, _, _, self._due, self._schedule_topic, managed, self._max_delayed = delays
        self._managed = frozenset(managed)
        self._marks = dict(zip((TRANSACTION_COMMIT, TRANSACTION_ROLLBACK), marks, strict=True))

    def encode(
        self,
        data: bytes,
        topics: Mapping[str, Any],
        born_host: bytes,
        store_host: bytes,
        max_body_bytes: int,
        cluster: str,
        answer: tuple[bytes, bytes, bytes, bytes, bytes],
        waits: bool,
        halves: tuple[int, Sequence[Any], int],
        delays: Delays,
        queues: Mapping[tuple[str, int], Any],
        physical_offset: int,
        store_ms: int,
        max_record_bytes: int,
        room_bytes: int,
        log: bytes,
        log_base: int,
    ) -> Sent:
        """Return the records of the requests at the start of `data`, up to the first frame that is no such request.

        `topics` maps names to configurations, `queues` maps topic and queue id to queues with a `max_number`. `answer`
        are the parts of a response: up to the id's offset, between it and the queue id, between it and the queue
        offset, up to the opaque, and the end. `waits`: all responses wait, so messages that request none of this are
        left to their processor. `halves` are the maximum size of a half message's body (-1: there may be
        none), the chunks of pending half messages, and the time in ms. `delays` decide about delay levels. `log` is the
        open segment, which begins at `log_base`.
        """
        written = _Written(queues, physical_offset, store_ms, room_bytes)
        max_half_body_bytes, chunks, now_ms = halves
        written_bytes = physical_offset - log_base
        log = bytes(log[:written_bytes]) if 0 <= written_bytes <= len(log) else b""
        read = 0
        while frame := frame_at(data, read):
            command = usual_command(frame) if len(born_host) == len(store_host) == IPV4_HOST_BYTES else None
            if command is None:
                break
            if command.code == RequestCode.END_TRANSACTION:
                ends = self._ends(command, written, chunks, log, log_base, topics)
                if ends is None or not self._end(*ends, written, now_ms, store_host, max_record_bytes):
                    break
            else:
                limits = max_body_bytes, max_half_body_bytes, max_record_bytes
                hosts = born_host, store_host
                if not self._send(command, written, topics, hosts, cluster, answer, waits, limits, now_ms, delays):
                    break
            read += 4 + len(frame)
        return written.sent(read)

    def _send(
        self,
        command: Command,
        written: _Written,
        topics: Mapping[str, Any],
        hosts: tuple[bytes, bytes],
        cluster: str,
        answer: tuple[bytes, bytes, bytes, bytes, bytes],
        waits: bool,
        limits: tuple[int, int, int],
        now_ms: int,
        delays: Delays,
    ) -> bool:
        max_body_bytes, max_half_body_bytes, max_record_bytes = limits
        header = self._plain_send(command, topics, max_body_bytes)
        if header is None:
            return False
        topic, properties, most = header.topic, parse_properties(header.properties or ""), MAX_PROPERTIES_BYTES
        transaction = header.sys_flag & TRANSACTION_MASK
        if self._needs_rules(properties, self._ruled_in_half if transaction else self._ruled, waits):
            return False
        wait = properties.pop(self._wait, None)
        properties[self._cluster] = cluster
        stored_topic, queue_id, due_ms = topic, header.queue_id, None
        if transaction:
            if (
                transaction != TRANSACTION_PREPARED
                or properties.get(self._prepared) != "true"
                or not properties.get(self._group)
                or len(command.body) > max_half_body_bytes
                or self._half_topic not in topics
                or written.start == 0
            ):
                return False
            stored_topic, queue_id, most = self._half_topic, 0, self._max_half
        elif self._level in properties:
            due_ms = self._due_ms(topic, properties, len(command.body), now_ms, delays)
            if due_ms is None:
                return False
            stored_topic, queue_id, most = self._schedule_topic, int(properties[self._level]) - 1, self._max_delayed
        if stored_topic is not topic:
            if wait is not None:
                properties[self._wait] = wait
            properties |= {self._real_topic: topic, self._real_queue_id: str(header.queue_id)}
        if due_ms is not None:
            number = written.next_number(stored_topic, queue_id)
            if number is None:
                return False
            properties[self._due] = format_due(due_ms, queue_id, number)
        raw = encode_properties(properties)
        if len(properties) > MAX_PAIRS or len(raw) > most:
            return False
        sys_flag, times = header.sys_flag & ~TRANSACTION_MASK, header.reconsume_times or 0
        new = _New(
            stored_topic, queue_id, header.flag, sys_flag, header.born_timestamp, *hosts, times, 0, command.body, raw,
            properties, due_ms,
        )  # fmt: skip
        if len(new.encoded(0, 0, 0)) > max_record_bytes or (added := written.add(new)) is None:
            return False
        [(number, offset, size)] = added
        if transaction:
            written.steps.append((number, offset, header.born_timestamp, properties[self._group]))
            written.sums_of(topic).halves += 1
        sums = written.sums_of(topic if due_ms is not None else stored_topic)
        if due_ms is None:
            sums.messages, sums.bytes = sums.messages + 1, sums.bytes + size
        else:
            written.delayed.append((topic, queue_id, offset, size, due_ms))
        written.responses.append(_response(answer, offset, header.queue_id, number, command.opaque))
        return True

    def _needs_rules(self, properties: Mapping[str, str], ruled: Collection[str], waits: bool) -> bool:
        if any(name.startswith(self._own_prefix) or name in ruled for name in properties):
            return True
        return waits and properties.get(self._wait, "true").lower() != "true"

    def _due_ms(
        self, topic: str, properties: Mapping[str, str], body_bytes: int, now_ms: int, delays: Delays
    ) -> int | None:
        """Return the due time in ms of a message with a delay level; None if it needs rules."""
        delays_ms, ruled, most = delays
        level = properties[self._level]
        is_plain = body_bytes <= most and topic not in ruled and self._managed.isdisjoint(properties)
        if not is_plain or not _is_integer(level) or not 1 <= int(level) <= len(delays_ms):
            return None
        due_ms = now_ms + delays_ms[int(level) - 1]
        return due_ms if len(str(due_ms)) <= DUE_DIGITS and due_ms >= 0 else None

    def _plain_send(
        self, command: Command, topics: Mapping[str, Any], max_body_bytes: int
    ) -> SendMessageRequestHeader | None:
        """Return the header of a plain send, whatever its properties; None for anything else."""
        try:
            header = SendMessageRequestHeaderV2.from_fields(command.fields)
        except RequestError:
            return None
        topic, text = header.topic, header.properties or ""
        is_plain = (
            command.code == RequestCode.SEND_MESSAGE_V2
            and command.flag == 0
            and all(len(name) == 1 for name in command.fields)
            and all(_is_integer(command.fields.get(name, "0")) for name in _INTEGER_FIELDS)
            and command.fields.get("k", "true") in ("true", "false")
            and command.fields.get("m", "false") == "false"
            and not header.sys_flag & HOST_MASK
            and len(command.body) <= max_body_bytes
            and text.count(PAIR_SEPARATOR) < MAX_PAIRS
        )
        return header if is_plain and self._is_open(topic, header.queue_id, topics) else None

    def _is_open(self, topic: str, queue_id: int, topics: Mapping[str, Any]) -> bool:
        config = topics.get(topic)
        if (
            len(topic.encode()) > MAX_TOPIC_LENGTH
            or topic.startswith(self._retry_prefix)
            or topic in self._closed
            or config is None
            or config.order
            or config.topic_filter_type == "MULTI_TAG"
        ):
            return False
        return 0 <= queue_id < max(config.write_queue_nums, config.read_queue_nums)

    def _ends(
        self,
        command: Command,
        written: _Written,
        chunks: Sequence[Any],
        log: bytes,
        log_base: int,
        topics: Mapping[str, Any],
    ) -> tuple[Record, dict[str, str], int] | None:
        """Return the half message that a one-way request ends, its properties, and the outcome; None otherwise."""
        fields = command.fields
        try:
            header = EndTransactionRequestHeader.from_fields(fields)
        except RequestError:
            return None
        is_end = (
            command.flag == FLAG_ONEWAY
            and all(len(name) > 1 for name in fields)
            and all(_is_integer(fields[name]) for name in _ENDING_INTEGERS)
            and fields.get("fromTransactionCheck", "true") in ("true", "false")
            and header.commit_or_rollback in self._marks
        )
        place, number = header.commit_log_offset, header.tran_state_table_offset
        pending = [
            chunk
            for chunk in chunks
            for at, offset in enumerate(chunk.physical_offsets)
            if offset == place > 0 and chunk.checks[at] == 0 and chunk.offsets[at] == number
        ]
        if not is_end or not pending or any(step[1] == place and not step[3] for step in written.steps):
            return None
        record = _half_at(log, place - log_base) if place >= log_base else None
        if (
            record is None
            or written.read_bytes + record.size > MAX_READ_BYTES
            or record.sys_flag & HOST_MASK
            or (record.topic, record.queue_id) != (self._half_topic, 0)
            or (record.queue_offset, record.physical_offset) != (number, place)
        ):
            return None
        try:
            text = record.raw_properties.decode()
        except UnicodeDecodeError:
            return None
        properties = parse_properties(text)
        is_ruled = any(name.startswith(self._own_prefix) or name in self._ruled_in_half for name in properties)
        if text.count(PAIR_SEPARATOR) >= MAX_PAIRS or is_ruled or properties.get(self._group) != header.producer_group:
            return None
        if header.commit_or_rollback == TRANSACTION_COMMIT:
            queue_id = properties.get(self._real_queue_id, "")
            topic = properties.get(self._real_topic, "")
            if not _is_queue_id(queue_id) or not self._is_open(topic, int(queue_id), topics):
                return None
        return record, properties, header.commit_or_rollback

    def _end(
        self,
        half: Record,
        properties: dict[str, str],
        outcome: int,
        written: _Written,
        now_ms: int,
        store_host: bytes,
        max_record_bytes: int,
    ) -> bool:
        mark, place = self._marks[outcome], half.physical_offset
        op_mark = _New(
            self._op_topic, 0, 0, 0, now_ms, store_host, store_host, 0, place, b"%d" % half.queue_offset, mark.encode(),
            parse_properties(mark),
        )  # fmt: skip
        records = [op_mark]
        if len(records[0].encoded(0, 0, 0)) > max_record_bytes:
            return False
        if outcome == TRANSACTION_COMMIT:
            copy = _New(
                properties[self._real_topic], int(properties[self._real_queue_id]), half.flag,
                half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT, half.born_timestamp_ms, half.born_host,
                half.store_host, half.reconsume_times, place, half.body, half.raw_properties, properties,
            )  # fmt: skip
            records.insert(0, copy)
        added = written.add(*records)
        if added is None:
            return False
        if outcome == TRANSACTION_COMMIT:
            sums = written.sums_of(records[0].topic)
            sums.copies, sums.copied_bytes = sums.copies + 1, sums.copied_bytes + added[0][2]
        written.read_bytes += half.size
        written.steps.append((added[-1][0], place, outcome, ""))
        return True


def _half_at(log: bytes, at: int) -> Record | None:
    """Return the record at a position of the log, if it is whole and sound."""
    size = int.from_bytes(log[at : at + 4], "big", signed=True)
    if not 4 <= size <= len(log) - at:
        return None
    try:
        return decode_record(log[at : at + size])
    except RecordError:
        return None


def _response(
    answer: tuple[bytes, bytes, bytes, bytes, bytes], offset: int, queue_id: int, queue_offset: int, opaque: int
) -> bytes:
    to_id, to_queue_id, to_queue_offset, to_opaque, end = answer
    header = b"%b%016X%b%d%b%d%b%d%b" % (
        to_id, offset, to_queue_id, queue_id, to_queue_offset, queue_offset, to_opaque, opaque, end,
    )  # fmt: skip
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
