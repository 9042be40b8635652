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
from delaymq.message.marks import format_due
from delaymq.message.names import MAX_TOPIC_LENGTH, UNIQUE_KEY
from delaymq.message.properties import (
    MAX_PROPERTIES_BYTES,
    PAIR_SEPARATOR,
    encode_properties,
    parse_properties,
)
from delaymq.message.record import IPV4_HOST_BYTES, Record, decode_record
from delaymq.message.timed_marks import first_due
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import FLAG_ONEWAY, Command
from delaymq.protocol.credential_fields import ACCESS_KEY, SIGNATURE
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    EndTransactionRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from delaymq.protocol.signatures import Signer
from delaymq.schedule.timeline import TIMELINE_QUEUE
from delaymq.store.plain_runs import Sent

from delaymq_testing.broker.plain_sends.encoded_sends import Answer, NewRecord, Written, response_of
from delaymq_testing.broker.plain_sends.sends import INTEGER, frame_at, usual_command

MAX_PAIRS: Final = 64
"""Maximum number of properties of a message."""
MAX_READ_BYTES: Final = 256 * 1024
"""Maximum size of the half messages that one call reads."""
DUE_DIGITS: Final = 16
TIMED_DIGITS: Final = 18

_is_integer = re.compile(INTEGER).fullmatch
_is_queue_id = re.compile(r"0|[1-9][0-9]{0,3}").fullmatch
_INTEGER_FIELDS: Final = "defghjl"
_ENDING_INTEGERS: Final = ("tranStateTableOffset", "commitLogOffset", "commitOrRollback")

Rules = tuple[str, str, tuple[str, str, str, str], Sequence[str], str, str, int]
"""Half topic, op topic, names of properties (half message, group, real topic, real queue id), names of further
properties that need rules in a half message, encoded properties of the op marks of a commit and of a rollback, maximum
size of the properties of a half message."""


TimedRules = tuple[Sequence[tuple[str, int]], str, str, int]
"""Properties that request a due time, each with the unit of a delay in ms (0: a time since the epoch in ms), names of
the due time and the timer topic, maximum size of the properties."""

DelayRules = tuple[str, str, str, str, str, Sequence[str], int, TimedRules]
"""Names of the delay level, the real topic, the real queue id, the due time and the schedule topic, names of properties
with which a delayed message needs rules, maximum size of its properties if it has a level, rules of timed messages."""

Delays = tuple[tuple[int, ...], Mapping[str, Any], int, int, int]
"""Delay of each level in ms, topics whose delayed messages need rules, maximum size of the body of one that needs none,
with a level and with a due time, and the longest delay until a due time in ms (-1: all of them need rules)."""

PlainSigner = tuple[str, bytes, Collection[str]]
"""Access key and secret key of the account that has to sign the requests, and the topics to which it may send."""


class _Delay(NamedTuple):
    """Where a delayed message is stored until it is due."""

    topic: str
    queue_id: int
    due_ms: int
    max_properties_bytes: int


class SendEncoder:
    """Encoder of requests that need no rules but those given to the constructor."""

    def __init__(
        self,
        ruled: Collection[str],
        own_prefix: str,
        closed: Collection[str],
        retry_prefix: str,
        names: tuple[str, str, str, str],
        transactions: Rules,
        delays: DelayRules,
    ) -> None:
        """`ruled`: names of properties that need rules of the broker, as do those that start with `own_prefix`.

        `closed`: topics that need rules, as do those that start with `retry_prefix`. `names` are those of the
        properties that the broker removes and sets, and of the only default topic of signed sends.
        """
        self._ruled = frozenset(ruled)
        self._own_prefix = own_prefix
        self._closed = frozenset(closed)
        self._retry_prefix = retry_prefix
        self._wait, self._cluster, self._account, self._default_topic = names
        self._half_topic, self._op_topic, names_of_half, ruled_in_half, *marks, self._max_half = transactions
        self._prepared, self._group, self._real_topic, self._real_queue_id = names_of_half
        self._ruled_in_half = self._ruled.union(ruled_in_half) - {self._prepared}
        self._level, _, _, self._due, self._schedule_topic, managed, self._max_delayed, timed = delays
        requests, self._out_ms, self._timer_topic, self._max_timed = timed
        self._units_ms = dict(requests)
        self._managed = frozenset(managed)
        self._requests = frozenset((self._level, *self._units_ms))
        self._marks = dict(zip((TRANSACTION_COMMIT, TRANSACTION_ROLLBACK), marks, strict=True))

    def encode(
        self,
        data: bytes,
        topics: Mapping[str, Any],
        born_host: bytes,
        store_host: bytes,
        max_body_bytes: int,
        cluster: str,
        answer: Answer,
        waits: bool,
        halves: tuple[int, Sequence[Any], int, int],
        delays: Delays,
        signer: PlainSigner | None,
        queues: Mapping[tuple[str, int], Any],
        physical_offset: int,
        store_ms: int,
        max_record_bytes: int,
        room_bytes: int,
        log: bytes,
        log_base: int,
    ) -> Sent:
        """Return the records of the requests at the start of `data`, up to the first frame that is no such request.

        `topics` maps names to configurations, `queues` maps topic and queue id to queues with a `max_number`. `waits`:
        all responses wait, so messages that request none of this are left to their processor. `halves` are the maximum
        size of a half message's body (-1: there may be none), the chunks of pending half messages, the time in ms, and
        the physical offset at which the half messages that may be ended end.
        `delays` decide about delayed messages. `signer`: requests need its signature, and otherwise must have none.
        `log` is the open segment, which begins at `log_base`.
        """
        written = Written(queues, physical_offset, store_ms, room_bytes)
        max_half_body_bytes, chunks, now_ms, halves_end = halves
        written_bytes = min(physical_offset, halves_end) - log_base
        log = bytes(log[:written_bytes]) if 0 <= written_bytes <= len(log) else b""
        read = 0
        while frame := frame_at(data, read):
            command = usual_command(frame) if len(born_host) == len(store_host) == IPV4_HOST_BYTES else None
            if command is None or not _is_signed(command, signer):
                break
            if command.code == RequestCode.END_TRANSACTION:
                ends = self._ends(command, written, chunks, log, log_base, topics)
                if ends is None or not _may_send(signer, ends[1].get(self._real_topic, "")):
                    break
                if not self._end(*ends, written, now_ms, store_host, max_record_bytes):
                    break
            else:
                limits = max_body_bytes, max_half_body_bytes, max_record_bytes
                hosts = born_host, store_host
                if signer is not None and command.fields.get("c") != self._default_topic:
                    break
                if not self._send(
                    command, written, topics, hosts, cluster, answer, waits, limits, now_ms, delays, signer
                ):
                    break
                written.body_bytes += len(command.body)
            read += 4 + len(frame)
        return written.sent(read)

    def _send(
        self,
        command: Command,
        written: Written,
        topics: Mapping[str, Any],
        hosts: tuple[bytes, bytes],
        cluster: str,
        answer: Answer,
        waits: bool,
        limits: tuple[int, int, int],
        now_ms: int,
        delays: Delays,
        signer: PlainSigner | None,
    ) -> bool:
        max_body_bytes, max_half_body_bytes, max_record_bytes = limits
        header = self._plain_send(command, topics, max_body_bytes)
        if header is None or not _may_send(signer, header.topic):
            return False
        topic, properties, most = header.topic, parse_properties(header.properties or ""), MAX_PROPERTIES_BYTES
        transaction = header.sys_flag & TRANSACTION_MASK
        if self._needs_rules(properties, self._ruled_in_half if transaction else self._ruled, waits):
            return False
        wait = properties.pop(self._wait, None)
        properties[self._cluster] = cluster
        stored_topic, queue_id, delay = topic, header.queue_id, None
        if transaction:
            is_half = transaction == TRANSACTION_PREPARED and len(command.body) <= max_half_body_bytes
            if not (is_half and self._half_topic in topics and self._is_half(properties) and written.start):
                return False
            stored_topic, queue_id, most = self._half_topic, 0, self._max_half
        elif not self._requests.isdisjoint(properties):
            delay = self._delay(topic, properties, len(command.body), now_ms, delays)
            if delay is None:
                return False
            stored_topic, queue_id, most = delay.topic, delay.queue_id, delay.max_properties_bytes
        is_timed = stored_topic == self._timer_topic
        if stored_topic is not topic:
            properties |= {} if wait is None else {self._wait: wait}
            properties |= {self._out_ms: str(delay.due_ms)} if delay is not None and is_timed else {}
            properties |= {self._real_topic: topic, self._real_queue_id: str(header.queue_id)}
        if delay is not None and not self._state_due(properties, delay, written, signer):
            return False
        raw = encode_properties(properties)
        if len(properties) > MAX_PAIRS or len(raw) > most:
            return False
        sys_flag, times = header.sys_flag & ~TRANSACTION_MASK, header.reconsume_times or 0
        new = NewRecord(
            stored_topic, queue_id, header.flag, sys_flag, header.born_timestamp, *hosts, times, 0, command.body, raw,
            properties, None if delay is None else delay.due_ms,
        )  # fmt: skip
        if len(new.encoded(0, 0, 0)) > max_record_bytes or (added := written.add(new)) is None:
            return False
        [(number, offset, size)] = added
        if transaction:
            written.steps.append((number, offset, header.born_timestamp, properties[self._group]))
        handle = ""
        written.sums_of(topic).elsewhere += is_timed or bool(transaction)
        if delay is None or is_timed:
            sums = written.sums_of(stored_topic)
            sums.messages, sums.bytes = sums.messages + 1, sums.bytes + size
        if delay is not None:
            written.delayed.append((topic, TIMELINE_QUEUE if is_timed else queue_id, offset, size, delay.due_ms))
            if is_timed and (key := properties.get(UNIQUE_KEY)):
                handle = f"v1 {topic} {answer[-1]} {delay.due_ms} {key}"
        written.responses.append(response_of(answer, offset, header.queue_id, number, command.opaque, handle))
        return True

    def _state_due(
        self, properties: dict[str, str], delay: _Delay, written: Written, signer: PlainSigner | None
    ) -> bool:
        """Add due time and account to the properties of a message; False if its queue does not exist."""
        number = written.next_number(delay.topic, delay.queue_id)
        if number is None:
            return False
        account = {} if signer is None else {self._account: signer[0]}
        if delay.topic == self._timer_topic:
            properties |= account | {self._due: first_due(delay.due_ms).at(written.start + written.at)}
        else:
            properties |= {self._due: format_due(delay.due_ms, delay.queue_id, number)} | account
        return True

    def _is_half(self, properties: Mapping[str, str]) -> bool:
        return properties.get(self._prepared) == "true" and bool(properties.get(self._group))

    def _needs_rules(self, properties: Mapping[str, str], ruled: Collection[str], waits: bool) -> bool:
        if any(name.startswith(self._own_prefix) or name in ruled for name in properties):
            return True
        return waits and properties.get(self._wait, "true").lower() != "true"

    def _delay(
        self, topic: str, properties: Mapping[str, str], body_bytes: int, now_ms: int, delays: Delays
    ) -> _Delay | None:
        """Return where a message with a delay level or a due time is stored; None if it needs rules."""
        delays_ms, ruled, most, most_timed, max_ms = delays
        [name, *others] = self._requests.intersection(properties)
        if others or topic in ruled or not self._managed.isdisjoint(properties) or not _is_integer(properties[name]):
            return None
        value = int(properties[name])
        if name == self._level:
            if body_bytes > most or not 1 <= value <= len(delays_ms):
                return None
            due_ms = now_ms + delays_ms[value - 1]
            found = _Delay(self._schedule_topic, value - 1, due_ms, self._max_delayed)
            return found if len(str(due_ms)) <= DUE_DIGITS and due_ms >= 0 else None
        unit_ms = self._units_ms[name]
        due_ms = now_ms + value * unit_ms if unit_ms else value
        if body_bytes > most_timed or value < 0 or not 0 < due_ms - now_ms <= max_ms or due_ms >= 10**TIMED_DIGITS:
            return None
        return _Delay(self._timer_topic, 0, due_ms, self._max_timed)

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
            and "\0" not in text
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
        written: Written,
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
        written: Written,
        now_ms: int,
        store_host: bytes,
        max_record_bytes: int,
    ) -> bool:
        mark, place = self._marks[outcome], half.physical_offset
        op_mark = NewRecord(
            self._op_topic, 0, 0, 0, now_ms, store_host, store_host, 0, place, b"%d" % half.queue_offset, mark.encode(),
            parse_properties(mark),
        )  # fmt: skip
        records = [op_mark]
        if len(records[0].encoded(0, 0, 0)) > max_record_bytes:
            return False
        if outcome == TRANSACTION_COMMIT:
            copy = NewRecord(
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


def _is_signed(command: Command, signer: PlainSigner | None) -> bool:
    """Return whether a request has a valid signature, which is then removed; without a signer, whether it has none."""
    fields = command.fields
    if signer is None:
        return ACCESS_KEY not in fields and SIGNATURE not in fields
    access_key, secret_key, _ = signer
    if fields.get(ACCESS_KEY) != access_key or not Signer(secret_key.decode()).signed(fields, command.body):
        return False
    del fields[ACCESS_KEY], fields[SIGNATURE]
    return True


def _may_send(signer: PlainSigner | None, topic: str) -> bool:
    return signer is None or topic in signer[2]


def _half_at(log: bytes, at: int) -> Record | None:
    """Return the record at a position of the log, if it is whole and sound."""
    size = int.from_bytes(log[at : at + 4], "big", signed=True)
    if not 4 <= size <= len(log) - at:
        return None
    try:
        return decode_record(log[at : at + size])
    except RecordError:
        return None
