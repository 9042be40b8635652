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
from delaymq.message.names import KEYS, MAX_TOPIC_LENGTH, TAGS, UNIQUE_KEY
from delaymq.message.properties import (
    MAX_PROPERTIES_BYTES,
    PAIR_SEPARATOR,
    encode_properties,
    parse_properties,
)
from delaymq.message.record import IPV4_HOST_BYTES, Record, decode_record, encode_record
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import FLAG_ONEWAY, Command, decode_command
from delaymq.protocol.errors import ProtocolError, RequestError
from delaymq.protocol.headers import (
    EndTransactionRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from delaymq.store.consume_queue import ENTRY
from delaymq.store.index.index_file import INDEXED_KEY
from delaymq.store.index.key_index import indexed_keys
from delaymq.store.plain_runs import Sent, TransactionStep

MAX_PAIRS: Final = 64
"""Maximum number of properties of a message."""
MAX_QUEUES: Final = 64
"""Maximum number of queues of the requests of one call."""
MAX_HEADER_BYTES: Final = 0xFFFF
MAX_READ_BYTES: Final = 256 * 1024
"""Maximum size of the half messages that one call reads."""

_INTEGER = r"(?:0|-?[1-9][0-9]*)"
_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_ENDING = (
    "producerGroup|tranStateTableOffset|commitLogOffset|commitOrRollback|msgId|fromTransactionCheck|transactionId"
    "|bname|topic"
)
_FIELD = rf'"(?:[a-n]|{_ENDING})":{_STRING}'
_MEMBER = (
    rf'"(?:code|flag|opaque|version)":{_INTEGER}|"(?:language|serializeTypeCurrentRPC)":{_STRING}'
    rf'|"extFields":\{{{_FIELD}(?:,{_FIELD})*\}}'
)
_USUAL = re.compile(rf"\{{(?:{_MEMBER})(?:,(?:{_MEMBER}))*\}}").fullmatch
_NAMES = re.compile(rf'("[a-zA-Z]+"):(?:{_STRING}|{_INTEGER}|\{{)').findall
_is_integer = re.compile(_INTEGER).fullmatch
_is_queue_id = re.compile(r"0|[1-9][0-9]{0,3}").fullmatch
_INTEGER_FIELDS: Final = "defghjl"
_ENDING_INTEGERS: Final = ("tranStateTableOffset", "commitLogOffset", "commitOrRollback")

Rules = tuple[str, str, tuple[str, str, str, str], Sequence[str], str, str, int]
"""Half topic, op topic, names of properties (half message, group, real topic, real queue id), names of further
properties that need rules in a half message, encoded properties of the op marks of a commit and of a rollback, maximum
size of the properties of a half message."""


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
        queue.entries.append(ENTRY.pack(offset, size, tags_code(record.properties.get(TAGS, ""))))
        texts = [record.properties.get(UNIQUE_KEY, ""), *indexed_keys(record.properties.get(KEYS, ""))]
        hashes = [index_key_hash(record.topic, text) for text in texts if text]
        self.keys += [INDEXED_KEY.pack(each, offset, self.store_ms) for each in hashes]
        self.records.append(record.encoded(number, offset, self.store_ms))
        self.last_at, self.at = self.at, self.at + size
        return number, offset, size

    def sums_of(self, topic: str) -> _Sums:
        return self.sums.setdefault(topic, _Sums())

    def sent(self, read: int) -> Sent:
        stretches = []
        for (topic, queue_id), (first, entries) in self.places.items():
            first_at, last = ENTRY.unpack(entries[0])[0], ENTRY.unpack(entries[-1])[0]
            stretches.append((topic, queue_id, first, len(entries), first_at, last, b"".join(entries)))
        sums = [(topic, *each.row()) for topic, each in self.sums.items()]
        joined = [b"".join(each) for each in (self.records, self.keys, self.responses)]
        return read, self.last_at, joined[0], joined[1], stretches, sums, joined[2], self.steps


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
        halves: tuple[int, Sequence[Any], int],
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
        offset, up to the opaque, and the end. `halves` are the maximum size of a half message's body (-1: there may be
        none), the chunks of pending half messages, and the time in ms. `log` is the open segment, which begins at
        `log_base`.
        """
        written = _Written(queues, physical_offset, store_ms, room_bytes)
        max_half_body_bytes, chunks, now_ms = halves
        written_bytes = physical_offset - log_base
        log = bytes(log[:written_bytes]) if 0 <= written_bytes <= len(log) else b""
        read = 0
        while frame := _frame_at(data, read):
            command = _usual(frame) if len(born_host) == len(store_host) == IPV4_HOST_BYTES else None
            if command is None:
                break
            if command.code == RequestCode.END_TRANSACTION:
                ends = self._ends(command, written, chunks, log, log_base, topics)
                if ends is None or not self._end(*ends, written, now_ms, store_host, max_record_bytes):
                    break
            else:
                limits = max_body_bytes, max_half_body_bytes, max_record_bytes
                if not self._send(command, written, topics, (born_host, store_host), cluster, answer, limits):
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
        limits: tuple[int, int, int],
    ) -> bool:
        max_body_bytes, max_half_body_bytes, max_record_bytes = limits
        header = self._plain_send(command, topics, max_body_bytes)
        if header is None:
            return False
        topic, properties, most = header.topic, parse_properties(header.properties or ""), MAX_PROPERTIES_BYTES
        transaction = header.sys_flag & TRANSACTION_MASK
        ruled = self._ruled_in_half if transaction else self._ruled
        if any(name.startswith(self._own_prefix) or name in ruled for name in properties):
            return False
        wait = properties.pop(self._wait, None)
        properties[self._cluster] = cluster
        stored_topic, queue_id = topic, header.queue_id
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
            if wait is not None:
                properties[self._wait] = wait
            properties |= {self._real_topic: topic, self._real_queue_id: str(queue_id)}
            stored_topic, queue_id, most = self._half_topic, 0, self._max_half
        raw = encode_properties(properties)
        if len(properties) > MAX_PAIRS or len(raw) > most:
            return False
        sys_flag, times = header.sys_flag & ~TRANSACTION_MASK, header.reconsume_times or 0
        new = _New(
            stored_topic, queue_id, header.flag, sys_flag, header.born_timestamp, *hosts, times, 0, command.body, raw,
            properties,
        )  # fmt: skip
        if len(new.encoded(0, 0, 0)) > max_record_bytes or (added := written.add(new)) is None:
            return False
        [(number, offset, size)] = added
        if transaction:
            written.steps.append((number, offset, header.born_timestamp, properties[self._group]))
            written.sums_of(topic).halves += 1
        sums = written.sums_of(stored_topic)
        sums.messages, sums.bytes = sums.messages + 1, sums.bytes + size
        written.responses.append(_response(answer, offset, header.queue_id, number, command.opaque))
        return True

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


def _frame_at(data: bytes, at: int) -> bytes:
    """Return the complete frame at a position, without its length; empty if there is none."""
    length = int.from_bytes(data[at : at + 4])
    frame = data[at + 4 : at + 4 + length]
    return frame if len(data) >= at + 4 and len(frame) == length else b""


def _usual(frame: bytes) -> Command | None:
    """Return the command of a frame if its header is compact JSON without unusual or repeated names."""
    size = int.from_bytes(frame[:4])
    header = frame[4 : 4 + size]
    if len(frame) < 4 or len(header) != size or size > MAX_HEADER_BYTES:
        return None
    try:
        text = header.decode()
    except UnicodeDecodeError:
        return None
    if _USUAL(text) is None:
        return None
    # Within strings, quotes are escaped, so that no text in them looks like a name.
    names = _NAMES(text)
    if len(names) != len(set(names)) or not {'"code"', '"extFields"'} <= set(names):
        return None
    try:
        return decode_command(frame)
    except ProtocolError:
        return None


def _response(
    answer: tuple[bytes, bytes, bytes, bytes, bytes], offset: int, queue_id: int, queue_offset: int, opaque: int
) -> bytes:
    to_id, to_queue_id, to_queue_offset, to_opaque, end = answer
    header = b"%b%016X%b%d%b%d%b%d%b" % (
        to_id, offset, to_queue_id, queue_id, to_queue_offset, queue_offset, to_opaque, opaque, end,
    )  # fmt: skip
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
