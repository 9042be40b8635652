"""Storing of batches (320): small ones immediately, large ones in time slices."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Final

from delaymq.broker.delivery.delay_rewrite import strip_own
from delaymq.broker.delivery.settings.limits import NOTHING
from delaymq.broker.delivery.timed.requests import is_repeating
from delaymq.broker.requests.errors import message_illegal, store_refusal, topic_missing
from delaymq.broker.sending.admission import admit_batched, check_copies, check_limits, sent_properties
from delaymq.broker.sending.plain_batches import encoder
from delaymq.broker.statistics.put_times import SLOW_S
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.properties import encode_properties
from delaymq.protocol.batch import BatchMessage, read_batch
from delaymq.protocol.command import MAX_HEADER_BYTES
from delaymq.store.errors import StoreError
from delaymq.store.model import NewRecord
from delaymq.store.plain_runs import Encoded

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session
    from delaymq.protocol.headers import SendMessageRequestHeader

BATCHED_AT_ONCE: Final = 128
"""Maximum number of messages of a batch that are stored in one time slice (about 2 ms). The others follow in further
slices."""
MAX_BATCHED: Final = 31_650
"""Maximum number of messages in a batch. The response contains an id of 33 characters for each, and clients accept
headers of up to 1 MiB."""
MAX_REPEATING: Final = 16
"""Maximum number of repeating messages in a batch. Expression and time zone of each may take 2 ms."""
_OTHER_FIELDS_BYTES: Final = 4_096
_new = tuple.__new__


class Batch:
    """A batch that is being stored."""

    def __init__(
        self,
        broker: Broker,
        session: Session,
        header: SendMessageRequestHeader,
        topic: str,
        queue_id: int,
        sys_flag: int,
        account: str = "",
    ) -> None:
        self.broker = broker
        self._account = account
        self._host = session.remote_host
        self._header = header
        self.topic = topic
        self._queue_id = queue_id
        self._sys_flag = sys_flag
        self._shared_characters = len(header.properties or "")
        self._shared = sent_properties(header.properties or "")
        strip_own(self._shared)
        self._shared[names.CLUSTER] = broker.cluster_name
        self._ids: list[str] = []
        self._first_offset = 0
        self._delayed = NOTHING
        """Delayed messages of the batch that have been checked against the limits of their topic and account."""
        self._repeating = 0
        """Repeating messages of the batch that have been checked."""
        self._is_checked = False
        """Whether all messages of the batch have been checked."""
        self.end = 0
        """Physical offset of the end of the stored part of the batch."""

    def records(self, messages: list[BatchMessage]) -> list[NewRecord]:
        """Return the records for some messages of the batch.

        Raises RequestError for messages that a batch must not contain.
        """
        header, broker, host, sys_flag = self._header, self.broker, self._host, self._sys_flag
        shared, shared_characters, account = self._shared, self._shared_characters, self._account
        born_ms, store_host, reconsume_times = header.born_timestamp, broker.store_host, header.reconsume_times or 0
        records = []
        for flag, body, raw in messages:
            topic, queue_id = self.topic, self._queue_id
            properties, statement = admit_batched(broker, topic, queue_id, shared, shared_characters, raw, account)
            if statement is not None:
                topic, queue_id = names.TIMER_TOPIC, 0
            fields = (
                topic, queue_id, body, properties, flag, sys_flag, born_ms, host, store_host, reconsume_times, 0, False,
                statement, encode_properties(properties), None, False,
            )  # fmt: skip
            record = _new(NewRecord, fields)  # faster than NewRecord(…)
            if statement is not None:
                if not self._is_checked:
                    self._count_repeating(properties)
                    self._delayed = check_limits(broker, record, self.topic, account, self._delayed)
                check_copies(broker, record, self.topic)
            records.append(record)
        return records

    def _count_repeating(self, properties: dict[str, str]) -> None:
        self._repeating += is_repeating(properties)
        if self._repeating > MAX_REPEATING:
            raise message_illegal(
                f"the batch has more than {MAX_REPEATING} repeating messages: send them individually, or in smaller"
                " batches"
            )

    def check(self, messages: list[BatchMessage]) -> int:
        """Return the bytes that some messages will occupy in the log. Raises RequestError if one cannot be stored."""
        try:
            return self.broker.store.check_batch(self.records(messages))
        except (StoreError, IllegalMessageError) as error:
            self.broker.stats.put_failed += 1
            raise store_refusal(error) from error

    def store(self, records: list[NewRecord], room: int = 0) -> None:
        """Append the next records, all or none. Before the first of several parts, `room` is the size of all parts."""
        broker = self.broker
        began = perf_counter()
        try:
            if room:
                broker.store.make_room(room)
            appended = broker.store.append_batch(records)
        except (StoreError, IllegalMessageError) as error:
            broker.stats.put_failed += len(records)
            raise store_refusal(error) from error
        took_s = perf_counter() - began
        if took_s >= SLOW_S:
            broker.stats.put_times.slow(took_s)
        sizes = [each.size for each in appended if each.topic is self.topic]
        timed_sizes = [each.size for each in appended if each.topic is not self.topic]
        if sizes:
            broker.stats.put_batch(self.topic, len(sizes), sum(sizes))
        if timed_sizes:
            broker.stats.put_timed_batch(self.topic, len(timed_sizes), sum(timed_sizes))
        last = appended[-1]
        broker.stats.last_send_ms = last.store_timestamp_ms
        if not self._ids:
            self._first_offset = appended[0].queue_offset
        prefix = broker.message_id_prefix
        self._ids.append(",".join([f"{prefix}{each.physical_offset:016X}" for each in appended]))
        self.end = last.physical_offset + last.size

    def store_encoded(self, body: bytes) -> bool:
        """Append the whole batch, encoded by one call; False if its messages have to be admitted one at a time."""
        broker, header = self.broker, self._header

        def encode(
            queue_offset: int, physical_offset: int, now_ms: int, max_record_bytes: int, room_bytes: int
        ) -> Encoded | None:
            return encoder.encode(
                body, BATCHED_AT_ONCE, self._shared, self.topic, self._queue_id, queue_offset, physical_offset,
                self._sys_flag, header.born_timestamp, self._host, now_ms, broker.store_host,
                header.reconsume_times or 0, max_record_bytes, room_bytes, broker.message_id_prefix,
            )  # fmt: skip

        began = perf_counter()
        run = broker.store.append_encoded(self.topic, self._queue_id, encode)
        if run is None:
            return False
        took_s = perf_counter() - began
        if took_s >= SLOW_S:
            broker.stats.put_times.slow(took_s)
        broker.stats.put_batch(self.topic, run.messages, len(run.records))
        broker.stats.last_send_ms = run.store_timestamp_ms
        self._ids, self._first_offset, self.end = [run.text], run.queue_offset, run.end
        return True

    def store_in_slices(self, body: bytes) -> Iterator[None]:
        """Store a batch of many messages in steps. All messages are validated before the first one is stored."""
        room = count = at = 0
        most = most_batched(self.broker)
        while at < len(body):
            messages, at = read_batch(body, at, BATCHED_AT_ONCE, count)
            count += len(messages)
            if count > most:
                raise message_illegal(f"the batch has more than {most} messages: send smaller batches")
            room += self.check(messages)
            yield
        self._is_checked = True
        at = 0
        while at < len(body):
            messages, at = read_batch(body, at, BATCHED_AT_ONCE)
            if self.topic not in self.broker.topics.table:
                raise topic_missing(self.topic)
            self.store(self.records(messages), room)
            room = 0
            yield

    @property
    def waits(self) -> bool:
        """Whether the producer waits until the whole batch is confirmed."""
        return self.broker.answers_wait and self._shared.get(names.WAIT, "true").lower() == "true"

    def answer_fields(self) -> dict[str, str]:
        """Return the fields of the response. The whole batch must be stored."""
        return {
            "msgId": ",".join(self._ids),
            "queueId": str(self._queue_id),
            "queueOffset": str(self._first_offset),
            "MSG_REGION": self.broker.region,
            "TRACE_ON": self.broker.trace_on,
        }


def most_batched(broker: Broker) -> int:
    """Return the maximum number of messages of a batch whose ids fit into the header of the response."""
    return min(MAX_BATCHED, (MAX_HEADER_BYTES - _OTHER_FIELDS_BYTES) // (len(broker.message_id_prefix) + 16 + 1))
