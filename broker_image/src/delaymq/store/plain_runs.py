"""Runs of plain messages: encoded before they are appended to one queue.

A message is plain if it belongs to no transaction, is not pending, has no reserved properties, and has IPv4 hosts. The
copies of the hand-over are reported like plain messages: it settles what they state itself. So are encoded records of
transactions, whose steps have been applied before.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from delaymq.message.record import decode_record
from delaymq.store.consume_queue import ENTRY, ConsumeQueue
from delaymq.store.model import Dispatched

Encoded: TypeAlias = tuple[int, int, bytes, bytes, bytes, str]
"""Encoded messages: number of messages, position of the last record in the records, records, entries of the queue, keys
packed as INDEXED_KEY, and text for the response of which the store knows nothing."""

Encode: TypeAlias = Callable[[int, int, int, int, int], Encoded | None]
"""Function that encodes messages for a queue offset, a physical offset and a store time in ms, given the maximum size
of a record and the space for all of them, in bytes. None: they have to be appended one at a time."""


Copied: TypeAlias = tuple[int, int, bytes, bytes, Sequence[tuple[int, int, bytes]], Sequence[tuple[int, int, int]]]
"""Encoded copies of due messages: number of copies, position of the last one in the records, records, keys packed as
INDEXED_KEY, for each queue its id, the queue offset of the first copy and the entries, and for each stretch of messages
with equal due times, of which the store knows nothing, due time in ms, number of messages and size of their records."""

EncodeCopies: TypeAlias = Callable[[list[int], int, int, int], Copied]
"""Function that encodes copies for the next queue offsets of the queues 0, 1 and so on of a topic (-1 for those that do
not exist), a physical offset and a store time in ms, given the space for all of them in bytes."""

TransactionStep: TypeAlias = tuple[int, int, int, str]
"""What a record means for a transaction. A half message: queue offset, physical offset, time of birth in ms, and
producer group. An op mark: queue offset, physical offset of the half message, COMMIT or ROLLBACK, and an empty text."""

SentDelay: TypeAlias = tuple[str, int, int, int, int]
"""A delayed message: its own topic, queue of the schedule topic (-1 for a message in the timer topic), physical offset
and size of its record, and due time in ms."""

Sent: TypeAlias = tuple[
    int,
    int,
    bytes,
    bytes,
    Sequence[tuple[str, int, int, int, int, int, bytes]],
    Sequence[tuple[str, int, int, int, int, int]],
    bytes,
    Sequence[TransactionStep],
    Sequence[SentDelay],
    int,
]
"""Encoded requests: their size in bytes, position of the last record in the records, records, keys packed as
INDEXED_KEY, and the parts of a `Stretch` for each queue. Then follow what the store does not know: the sums of each
topic, the responses, the steps of transactions and the delayed messages, both in log order, and the size of the bodies
of all sends. Sums are the number of producers' messages in the topic and the size of their records in bytes, without
those with a delay level, the number of half messages and timed messages for the topic, which are stored elsewhere, and
the number of committed copies and their size."""

TakeSteps: TypeAlias = Callable[[Sequence[TransactionStep], int, int], object]
"""Function that receives steps of transactions, their store time in ms, and the end of their records in the log."""

EncodeSends: TypeAlias = Callable[
    [Mapping[tuple[str, int], ConsumeQueue], int, int, int, int, bytes | mmap.mmap, int], Sent
]
"""Function that encodes records for the queues of a table, a physical offset and a store time in ms, given the maximum
size of a record and the space for all of them, in bytes, and the open segment with the offset at which it begins. It
returns a size of 0 without any."""


class PlainRun(NamedTuple):
    """Plain messages that were appended."""

    topic: str
    queue_id: int
    queue_offset: int
    """Queue offset of the first message."""
    physical_offset: int
    """Physical offset of the first byte of `records`."""
    store_timestamp_ms: int
    messages: int
    records: bytes | memoryview
    """The records, without gaps when they were appended here; received ones may have others between them."""
    entries: bytes
    """Entries of the consume queue."""
    keys: bytes
    """Keys of the messages, packed as INDEXED_KEY."""
    text: str
    """Text for the response."""

    @property
    def end(self) -> int:
        """Physical offset of the end of the last record."""
        return self.physical_offset + len(self.records)

    def dispatched(self) -> list[Dispatched]:
        """Return the records, decoded."""
        found = []
        for offset, size, code in ENTRY.iter_unpack(self.entries):
            record = decode_record(self.records, offset - self.physical_offset, check_crc=False)
            found.append(
                Dispatched(
                    self.topic,
                    self.queue_id,
                    record.queue_offset,
                    offset,
                    size,
                    record.sys_flag,
                    record.store_timestamp_ms,
                    record.born_timestamp_ms,
                    record.body_crc,
                    record.reconsume_times,
                    record.prepared_transaction_offset,
                    record.properties,
                    code,
                )
            )
        return found


class Stretch(NamedTuple):
    """Records of one queue with consecutive queue offsets."""

    topic: str
    queue_id: int
    queue_offset: int
    """Queue offset of the first record."""
    records: int
    first_at: int
    last_at: int
    """Physical offsets of the first and the last record."""
    entries: bytes
    """Entries of the consume queue; empty if they are not wanted."""


@runtime_checkable
class ReceivesRuns(Protocol):
    """An observer that does not need every record of a run of plain messages."""

    def dispatch_run(self, run: PlainRun) -> None:
        """Process the records of a run, as `dispatch` would process each of them."""
