"""Batches (320) on their way into the store: small ones at once, large ones in turns."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Final

from delaymq.broker.delivery.delay_rewrite import strip_own
from delaymq.broker.errors import message_illegal, store_refusal, topic_missing
from delaymq.broker.send_admission import admit_batched
from delaymq.broker.statistics.put_times import SLOW_S
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.properties import parse_properties
from delaymq.protocol.batch import BatchMessage, read_batch
from delaymq.protocol.command import MAX_HEADER_BYTES
from delaymq.store.errors import StoreError
from delaymq.store.model import NewRecord

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.session import Session
    from delaymq.protocol.headers import SendMessageRequestHeader

BATCHED_AT_ONCE: Final = 128
"""Messages of a batch that are stored in one turn of the loop: some 2 ms. The others follow in turns of their own."""
MAX_BATCHED: Final = 31_650
"""Messages of a batch: the answer names each by an id of 33 characters, and clients take headers of 1 MiB."""
_OTHER_FIELDS_BYTES: Final = 4_096


class Batch:
    """A batch on its way into the store."""

    def __init__(
        self,
        broker: Broker,
        session: Session,
        header: SendMessageRequestHeader,
        topic: str,
        queue_id: int,
        sys_flag: int,
    ) -> None:
        self.broker = broker
        self._host = session.remote_host
        self._header = header
        self.topic = topic
        self._queue_id = queue_id
        self._sys_flag = sys_flag
        self._shared_characters = len(header.properties or "")
        self._shared = parse_properties(header.properties or "")
        strip_own(self._shared)
        self._shared[names.CLUSTER] = broker.cluster_name
        self._ids: list[str] = []
        self._first_offset = 0
        self.end = 0
        """Where the log ends behind what is stored of it."""

    def records(self, messages: list[BatchMessage]) -> list[NewRecord]:
        """What is stored of some of its messages; RequestError for those that may not be in a batch."""
        header, shared, characters = self._header, self._shared, self._shared_characters
        return [
            NewRecord(
                self.topic,
                self._queue_id,
                body,
                admit_batched(shared, characters, properties),
                flag,
                self._sys_flag,
                header.born_timestamp,
                self._host,
                self.broker.store_host,
                header.reconsume_times or 0,
            )
            for flag, body, properties in messages
        ]

    def check(self, messages: list[BatchMessage]) -> int:
        """Bytes that some of its messages will take in the log; RequestError for those that cannot be stored."""
        try:
            return self.broker.store.check_batch(self.records(messages))
        except (StoreError, IllegalMessageError) as error:
            self.broker.stats.put_failed += 1
            raise store_refusal(error) from error

    def store(self, records: list[NewRecord], room: int = 0) -> None:
        """Stores the next ones, all or none; before the first of several parts with `room` for all of them."""
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
        broker.stats.put_batch(self.topic, [each.size for each in appended])
        last = appended[-1]
        broker.stats.last_send_ms = last.store_timestamp_ms
        if not self._ids:
            self._first_offset = appended[0].queue_offset
        prefix = broker.message_id_prefix
        self._ids.append(",".join([f"{prefix}{each.physical_offset:016X}" for each in appended]))
        self.end = last.physical_offset + last.size

    def store_in_slices(self, body: bytes) -> Iterator[None]:
        """Stores a batch of many messages, some in each step; nothing before all of them are known to be sound."""
        room = count = at = 0
        most = most_batched(self.broker)
        while at < len(body):
            messages, at = read_batch(body, at, BATCHED_AT_ONCE, count)
            count += len(messages)
            if count > most:
                raise message_illegal(f"the batch has more than {most} messages: send smaller batches")
            room += self.check(messages)
            yield
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
        """Whether its producer is answered when all of it is on the disk."""
        return self.broker.waits_for_flush and self._shared.get(names.WAIT, "true").lower() == "true"

    def answer_fields(self) -> dict[str, str]:
        """What its producer is told: all of it is stored."""
        return {
            "msgId": ",".join(self._ids),
            "queueId": str(self._queue_id),
            "queueOffset": str(self._first_offset),
            "MSG_REGION": self.broker.region,
            "TRACE_ON": self.broker.trace_on,
        }


def most_batched(broker: Broker) -> int:
    """Messages of a batch whose ids fit the header of its answer."""
    return min(MAX_BATCHED, (MAX_HEADER_BYTES - _OTHER_FIELDS_BYTES) // (len(broker.message_id_prefix) + 16 + 1))
