"""Appending of records: the hot path of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from zlib import crc32

from delaymq.message.flags import HOST_MASK, TRANSACTION_COMMIT, TRANSACTION_MASK
from delaymq.message.hashing import tags_code
from delaymq.message.names import TAGS
from delaymq.message.properties import encode_properties
from delaymq.message.record import (
    BLANK_BYTES,
    BODY_CRC,
    BODY_CRC_MASK,
    FIXED_BYTES,
    HEAD,
    IPV4_HOST_BYTES,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
    TOPIC_LENGTH_BYTES,
    check_record_parts,
    encode_record,
    record_bytes,
)
from delaymq.message.timed_marks import Statement
from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import ENTRY, ConsumeQueues
from delaymq.store.dispatch import DELAYED_TOPICS, Dispatcher, due_or_tags_code
from delaymq.store.errors import (
    RecordTooLargeError,
    StoreClosedError,
    StoreFollowingError,
    StoreFullError,
    StoreReadOnlyError,
)
from delaymq.store.model import Dispatched, NewRecord, Reserve
from delaymq.store.options import StoreOptions
from delaymq.store.plain_runs import (
    Copied,
    Encode,
    EncodeCopies,
    EncodeSends,
    PlainRun,
    Sent,
    SentDelay,
    Stretch,
    TakeSteps,
)
from delaymq.store.retention import Retention

_FIXED_BYTES: Final = FIXED_BYTES - TOPIC_LENGTH_BYTES
"""Size of a record without body, topic with its length, and properties."""
_MOST_QUEUES: Final = 64
"""Maximum number of queues of a topic for which encoded copies are appended."""
_EARLY_BYTES: Final = 128
_PIECE_BYTES: Final = 1 << 18
"""The C library stores the first bytes of a copy last, and copies several pages at a time if it is large. A process
that is killed meanwhile would leave a hole before the other records of a batch.
"""
_body_crc_of, _queue_entry, _new = BODY_CRC.unpack_from, ENTRY.pack, tuple.__new__


class LogAppender:
    """Appends records to the log and dispatches them. Base of the store, for the same thread."""

    def __init__(
        self,
        options: StoreOptions,
        log: CommitLog,
        queues: ConsumeQueues,
        dispatcher: Dispatcher,
        retention: Retention,
        now_ms: Callable[[], int],
    ) -> None:
        self.options = options
        self.is_closed = False
        """Whether the store accepts no records any more."""
        self.is_read_only = False
        """Whether the store was opened without the permission to append."""
        self.refusal = ""
        """Reason of another part of the broker for storing nothing at the moment; empty without one."""
        self.is_following = False
        """Whether the log is another broker's, which appends its records."""
        self.is_writable = True
        """Whether none of these applies."""
        self._log = log
        self._queue_counts: tuple[int, dict[str, int]] = 0, {}
        """Number of all queues, and by topic the highest queue id below `_MOST_QUEUES`, plus 1, as of that number."""
        self._queues = queues
        self._dispatcher = dispatcher
        self._retention = retention
        self._now_ms = now_ms

    def append(self, message: NewRecord) -> Dispatched:
        """Append a record in memory and dispatch it; may create the next segment.

        Nothing has changed after StoreFullError, StoreFailedError, StoreClosedError, RecordTooLargeError or
        IllegalMessageError.
        """
        log = self._log
        if not self.is_writable or log.failure is not None or self._retention.disk.writes_refused:
            self.refuse(message)
        now_ms = max(self._now_ms(), log.last_store_timestamp_ms)
        (
            topic, queue_id, body, properties, flag, sys_flag, born_ms, born_host, store_host, reconsume_times,
            prepared_offset, is_copy, statement, property_bytes, body_crc, _,
        ) = message  # fmt: skip
        if property_bytes is None:
            property_bytes = encode_properties(properties)
        transaction = sys_flag & TRANSACTION_MASK
        if transaction == 0 or transaction == TRANSACTION_COMMIT:
            queues = self._queues
            queue = queues.table.get((topic, queue_id)) or queues.get_or_make(topic, queue_id)
            queue_offset = queue.max_number
        else:
            queue, queue_offset = None, 0
        physical_offset = log.end_offset
        raw_topic = topic.encode()
        while True:
            stated_bytes = property_bytes
            if statement is not None:
                stated_bytes = _with_statement(property_bytes, statement, properties, physical_offset)
            data = encode_record(
                raw_topic, queue_id, queue_offset, physical_offset, flag, sys_flag, born_ms, born_host, now_ms,
                store_host, reconsume_times, prepared_offset, body, stated_bytes, body_crc,
            )  # fmt: skip
            size = len(data)
            if size > self.options.max_record_bytes and not is_copy:
                raise RecordTooLargeError(
                    f"the record has {size} bytes (limit: {self.options.max_record_bytes}): send a smaller message"
                )
            if size + BLANK_BYTES <= log.open_end - physical_offset:
                break
            encoded_for, physical_offset = physical_offset, self._room(size, message)
            if physical_offset == encoded_for:
                break
        at = physical_offset - log.segment_base
        log.mapping[at : at + size] = data
        log.end_offset = physical_offset + size
        if body_crc is None:
            (body_crc,) = _body_crc_of(data)
        log.last_offset, log.last_crc, log.last_store_timestamp_ms = physical_offset, body_crc, now_ms
        if statement is not None and statement.due_ms is not None:
            code = statement.due_ms
        elif topic in DELAYED_TOPICS:
            code = due_or_tags_code(
                topic, queue_id, queue_offset, physical_offset, properties, now_ms, self._dispatcher.levels
            )
        else:
            code = tags_code(properties.get(TAGS, ""))
        fields = (
            topic, queue_id, queue_offset, physical_offset, size, sys_flag, now_ms, born_ms, body_crc,
            reconsume_times, prepared_offset, properties, code,
        )  # fmt: skip
        record = _new(Dispatched, fields)  # faster than Dispatched(…)
        if queue is None:
            self._dispatcher.dispatch(record)
        else:
            queues.put(queue, queue_offset, physical_offset, size, code)
            for receive in self._dispatcher.receivers:
                receive(record)
        return record

    def _room(self, size: int, message: NewRecord | None) -> int:
        """Return the offset at which a record continues the log, in this segment or the next one.

        All but marks leave the end of the last segment free, unless the next one exists: on a full disk, it cannot be
        created.
        """
        log, retention = self._log, self._retention
        reserve = Reserve.NONE if message is None else message.reserve
        fits = size + BLANK_BYTES <= log.segment_end - log.end_offset
        if fits and reserve:
            return log.end_offset
        if reserve is Reserve.MARKS and retention.disk.writes_refused:
            self.refuse()
        if (
            reserve is not Reserve.CARRYING
            and log.segment_of(log.segment_end) is None
            and retention.lacks_reserve(besides_bytes=log.file_bytes)
        ):
            retention.disk = retention.disk._replace(writes_refused=True)
            self.refuse()
        if not fits:
            return log.roll(size)
        log.make_next()
        log.open_end = log.segment_end
        return log.end_offset

    def append_copies(self, copies: Sequence[NewRecord], appended: list[Dispatched]) -> None:
        """Append copies of records in the log, all of them plain, as `_append_run` does."""
        self._append_run(copies, appended)

    def append_batch(self, messages: Sequence[NewRecord]) -> list[Dispatched]:
        """Append all messages to one segment, or none; errors as in `append`.

        They have the same hosts and flags, as the messages of one request do, and no delay levels.
        """
        self.make_room(self.check_batch(messages))
        appended: list[Dispatched] = []
        if _is_plain(messages[0]):
            self._append_run(messages, appended)
        else:
            appended += [self.append(message) for message in messages]
        return appended

    def append_encoded(self, topic: str, queue_id: int, encode: Encode) -> PlainRun | None:
        """Append plain messages of one batch, as `encode` returns them; errors of the dispatch as in `append`.

        None: nothing has changed, and `append_batch` has to append the messages, or to report why it cannot.
        """
        log, queue, room = self._log, self._queues.table.get((topic, queue_id)), self._room_for_encoded()
        if queue is None or room <= 0 or topic in DELAYED_TOPICS:
            return None
        now_ms = max(self._now_ms(), log.last_store_timestamp_ms)
        queue_offset, physical_offset = queue.max_number, log.end_offset
        encoded = encode(queue_offset, physical_offset, now_ms, self.options.max_record_bytes, room)
        if encoded is None:
            return None
        messages, last_at, records, entries, keys, text = encoded
        self._write(records, last_at, now_ms)
        run = PlainRun(
            topic, queue_id, queue_offset, physical_offset, now_ms, messages, records, entries, keys, text
        )  # fmt: skip
        self._queues.put_entries(queue, entries)
        self._dispatcher.observe_plain(run)
        return run

    def append_encoded_copies(self, topic: str, encode: EncodeCopies) -> Copied | None:
        """Append copies of records for one topic, as `encode` returns them; errors of the dispatch as in `append`.

        None: nothing has changed, and `append_copies` has to append the first copy, or to report why it cannot.
        """
        log, room = self._log, self._room_for_encoded()
        now_ms = max(self._now_ms(), log.last_store_timestamp_ms)
        physical_offset = log.end_offset
        if room <= 0 or topic in DELAYED_TOPICS or not self._dispatcher.accepts_stretches(now_ms):
            return None
        encoded = encode(self._next_numbers(topic), physical_offset, now_ms, room)
        messages, last_at, records, keys, queues, _ = encoded
        if not messages:
            return None
        self._write(records, last_at, now_ms)
        stretches = []
        for queue_id, queue_offset, entries in queues:
            (first_at, _, _), (last, _, _) = ENTRY.unpack_from(entries), ENTRY.unpack(entries[-ENTRY.size :])
            count = len(entries) // ENTRY.size
            stretches.append(Stretch(topic, queue_id, queue_offset, count, first_at, last, entries))
        self._dispatcher.receive_plain(stretches, keys, memoryview(records), physical_offset)
        return encoded

    def append_encoded_sends(
        self, encode: EncodeSends, take_steps: TakeSteps, add_delayed: Callable[[Sequence[SentDelay]], object]
    ) -> Sent | None:
        """Append records of any topics, as `encode` returns them; errors of the dispatch as in `append`.

        Before the dispatch, `take_steps` receives the steps of transactions, and `add_delayed` the delayed messages, so
        that none is lost if the dispatch fails. `add_delayed` may raise OSError after it has added all.
        None: nothing has changed, and `append` has to append the first message, or to report why it cannot.
        """
        log, room = self._log, self._room_for_encoded()
        now_ms = max(self._now_ms(), log.last_store_timestamp_ms)
        physical_offset = log.end_offset
        if room <= 0 or not self._dispatcher.accepts_stretches(now_ms):
            return None
        sent = encode(
            self._queues.table, physical_offset, now_ms, self.options.max_record_bytes, room, log.mapping,
            log.segment_base,
        )  # fmt: skip
        size, last_at, records, keys, parts, _, _, steps, delayed, _ = sent
        if not size:
            return None
        self._write(records, last_at, now_ms)
        if steps:
            take_steps(steps, now_ms, log.end_offset)
        try:
            if delayed:
                add_delayed(delayed)
        finally:
            stretches = [_new(Stretch, each) for each in parts]  # faster than Stretch(…)
            self._dispatcher.receive_plain(stretches, keys, memoryview(records), physical_offset)
        return sent

    def _room_for_encoded(self) -> int:
        """Return the space for encoded records in the open segment, in bytes; 0 or less if none may be appended."""
        log = self._log
        if not self.is_writable or log.failure is not None or self._retention.disk.writes_refused:
            return 0
        return log.open_end - log.end_offset - BLANK_BYTES

    def _next_numbers(self, topic: str) -> list[int]:
        """Return the next queue offsets of a topic's queues 0, 1 and so on; -1 for those that do not exist."""
        table, (queues, counts) = self._queues.table, self._queue_counts
        if queues != len(table):
            counts = {}
            self._queue_counts = len(table), counts
        count = counts.get(topic)
        if count is None:
            ids = [queue_id for queue_id in range(_MOST_QUEUES) if (topic, queue_id) in table]
            count = counts[topic] = max(ids, default=-1) + 1
        found = [table.get((topic, queue_id)) for queue_id in range(count)]
        return [-1 if queue is None else queue.max_number for queue in found]

    def _write(self, records: bytes, last_at: int, now_ms: int) -> None:
        """Write records to the end of the open segment; the last one is at `last_at`."""
        log = self._log
        physical_offset, mapping = log.end_offset, log.mapping
        at = physical_offset - log.segment_base
        if last_at == 0:  # a single record, before which there can be no hole
            mapping[at : at + len(records)] = records
        else:
            view = memoryview(records)
            for start in range(0, len(records), _PIECE_BYTES):
                piece, to = view[start : start + _PIECE_BYTES], at + start
                mapping[to : to + min(_EARLY_BYTES, len(piece))] = piece[:_EARLY_BYTES]
                mapping[to : to + len(piece)] = piece
        log.end_offset = physical_offset + len(records)
        log.last_offset, log.last_store_timestamp_ms = physical_offset + last_at, now_ms
        (log.last_crc,) = _body_crc_of(records, last_at)

    def _append_run(self, records: Sequence[NewRecord], appended: list[Dispatched]) -> None:
        """Append plain records with one store time, then dispatch them; errors as in `append`.

        `appended`, an empty list, receives each record as soon as it is in the log. After an error, the record with
        the next index is the cause and is not in the log; if there is none, all are, and only a later step failed.

        All are plain and have at least one property; their sizes have been checked. None has a delay level.
        """
        log, queues = self._log, self._queues
        if not self.is_writable or log.failure is not None or self._retention.disk.writes_refused:
            self.refuse()
        now_ms = max(self._now_ms(), log.last_store_timestamp_ms)
        table, topic_before, raw_topic = queues.table, "", b""
        try:
            for (
                topic, queue_id, body, properties, flag, sys_flag, born_ms, born_host, store_host, reconsume_times,
                prepared_offset, _, statement, property_bytes, body_crc, _,
            ) in records:  # fmt: skip
                if property_bytes is None:
                    property_bytes = encode_properties(properties)
                if body_crc is None:
                    body_crc = crc32(body) & BODY_CRC_MASK
                queue = table.get((topic, queue_id)) or queues.get_or_make(topic, queue_id)
                queue_offset, physical_offset = queue.max_number, log.end_offset
                if topic != topic_before:
                    topic_before = topic
                    raw_topic = topic.encode()
                    raw_topic = len(raw_topic).to_bytes(TOPIC_LENGTH_BYTES, "big") + raw_topic
                size = _FIXED_BYTES + len(body) + len(raw_topic) + len(property_bytes)
                if statement is not None:
                    size += statement.property_bytes
                if size + BLANK_BYTES > log.open_end - physical_offset:
                    physical_offset = self._room(size, None)
                if statement is not None:
                    property_bytes = _with_statement(property_bytes, statement, properties, physical_offset)
                head = HEAD.pack(
                    size, MESSAGE_MAGIC, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms,
                    born_host, now_ms, store_host, reconsume_times, prepared_offset, len(body),
                )  # fmt: skip
                raw_length = PROPERTIES_LENGTH.pack(len(property_bytes))
                at = physical_offset - log.segment_base
                log.mapping[at : at + size] = b"".join((head, body, raw_topic, raw_length, property_bytes))
                log.end_offset = physical_offset + size
                log.last_offset, log.last_crc, log.last_store_timestamp_ms = physical_offset, body_crc, now_ms
                if statement is not None and statement.due_ms is not None:
                    code = statement.due_ms
                else:
                    code = tags_code(properties.get(TAGS, ""))
                fields = (
                    topic, queue_id, queue_offset, physical_offset, size, sys_flag, now_ms, born_ms, body_crc,
                    reconsume_times, prepared_offset, properties, code,
                )  # fmt: skip
                appended.append(_new(Dispatched, fields))  # faster than Dispatched(…)
                if queue.tail is not None:  # as in `put`
                    queue.tail += _queue_entry(physical_offset, size, code)
                    queue.max_number = queue_offset + 1
                else:
                    queues.put(queue, queue_offset, physical_offset, size, code)
        finally:
            if appended:
                self._dispatcher.observe_run(appended)

    def make_room(self, total: int) -> None:
        """Continue in the next segment if `total` bytes do not fit the current one; errors as in `append`."""
        log = self._log
        if not self.is_writable or log.failure is not None or self._retention.disk.writes_refused:
            self.refuse()
        if total + BLANK_BYTES > log.open_end - log.end_offset:
            self._room(total, None)

    def check_batch(self, messages: Sequence[NewRecord]) -> int:
        """Return the number of log bytes that the messages need; errors as in `append`."""
        if not self.is_writable or self._log.failure is not None or self._retention.disk.writes_refused:
            self.refuse()
        total, table = 0, self._queues.table
        for message in messages:
            encoded = message.property_bytes
            if encoded is None:
                encoded = encode_properties(message.properties)
            if (message.topic, message.queue_id) not in table:
                self._queues.get_or_make(message.topic, message.queue_id)
            topic_bytes, properties_bytes = len(message.topic.encode()), len(encoded)
            if message.statement is not None:
                properties_bytes += message.statement.property_bytes
            check_record_parts(topic_bytes, properties_bytes)
            size = record_bytes(topic_bytes, len(message.body), properties_bytes, message.born_host, message.store_host)
            if size > self.options.max_record_bytes:
                raise RecordTooLargeError(
                    f"a record of the batch has {size} bytes (limit: {self.options.max_record_bytes}): send smaller"
                    " messages"
                )
            total += size
        return total

    def refuse_all(self, refusal: str) -> None:
        """Store nothing for a reason, which is a sentence that says what to do; an empty one ends this."""
        self.refusal = refusal
        self.is_writable = not (refusal or self.is_following or self.is_closed)

    def watch_appends(self, function: Callable[[], object] | None) -> None:
        """Set the function to call when this store has appended records itself, after all observers."""
        self._dispatcher.watch(function)

    def refuse(self, message: NewRecord | None = None) -> None:
        """Raise the error that says why records are rejected, except for records that may use a reserve."""
        if message is not None and message.reserve and self.is_writable and self._log.failure is None:
            return
        if self.is_read_only:
            raise StoreReadOnlyError("the store is read-only: start the broker without readOnly to store messages")
        if self.is_closed:
            raise StoreClosedError("the store is closed")
        if self.refusal:
            raise StoreFullError(self.refusal)
        if self.is_following:
            raise StoreFollowingError("the broker is a replica, which stores nothing itself: send to the master")
        if self._log.failure is not None:
            raise self._log.failure
        used_ratio = self._retention.disk.used_ratio
        if used_ratio <= self.options.disk_write_refused_ratio:
            raise StoreFullError(
                f"the disk has less free space than is reserved for pending messages ({self._retention.reserve_bytes()}"
                " bytes): free space or enlarge the volume"
            )
        raise StoreFullError(
            f"the disk is {used_ratio:.0%} full; the store rejects messages while usage is "
            f"above {self.options.disk_write_refused_ratio:.0%}: free space or enlarge the volume"
        )


def _is_plain(record: NewRecord) -> bool:
    """Return whether a record has IPv4 hosts, flags that state so, and is no half message."""
    return (
        len(record.born_host) == len(record.store_host) == IPV4_HOST_BYTES
        and not record.sys_flag & HOST_MASK
        and record.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)
    )


def _with_statement(
    property_bytes: bytes, statement: Statement, properties: dict[str, str], physical_offset: int
) -> bytes:
    """Return the properties with the statement of the record at `physical_offset`, which `properties` gets too."""
    text = properties[statement.name] = statement.at(physical_offset)
    added = f"\x02{statement.name}\x01{text}".encode("ascii")
    return property_bytes + added if property_bytes else added[1:]
