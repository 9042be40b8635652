"""Twin of the kernel `CopyEncoder`: copies of due messages for the log (docs/kernels.md).

Only tests use it. Without the kernel, the broker makes and appends copies one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from delaymq.broker.delivery.copying.plain_copies import plain_copy
from delaymq.message import names
from delaymq.message.flags import TRANSACTION_MASK
from delaymq.message.hashing import index_key_hash, tags_code
from delaymq.message.properties import PAIR_SEPARATOR
from delaymq.message.record import decode_record, encode_record
from delaymq.schedule.timeline import Pending
from delaymq.store.consume_queue import ENTRY
from delaymq.store.index.index_file import INDEXED_KEY
from delaymq.store.index.key_index import indexed_keys
from delaymq.store.plain_runs import Copied

MAX_PAIRS: Final = 64
"""Maximum number of properties of a message."""


class CopyEncoder:
    """Encoder of copies of due messages whose records are as DelayMQ wrote them."""

    def encode(
        self,
        datas: Sequence[bytes],
        pendings: Sequence[Pending],
        topic: str,
        level: int,
        now_ms: int,
        numbers: Sequence[int],
        physical_offset: int,
        store_ms: int,
        room_bytes: int,
    ) -> Copied:
        """Return the copies of the first messages of `topic`, up to the first one that Python has to handle.

        `datas` are the records that `pendings` name. `level` is the delay level, and 0 for timed messages. `numbers`
        are the next queue offsets of the queues 0, 1 and so on, and -1 for those that do not exist.
        """
        next_numbers = list(numbers)
        entries: list[list[bytes]] = [[] for _ in numbers]
        records: list[bytes] = []
        keys: list[bytes] = []
        sums: list[tuple[int, int, int]] = []
        at = last_at = 0
        for data, pending in zip(datas, pendings, strict=True):
            found = plain_copy(data, pending, topic, level, now_ms)
            if found is None or _needs_python(data):
                break
            copy, _ = found
            if names.DELAY_SCHEDULE_ID in copy.properties or copy.sys_flag & TRANSACTION_MASK:
                break
            if copy.queue_id >= len(numbers) or numbers[copy.queue_id] < 0:
                break
            offset, stated = physical_offset + at, copy.property_bytes or b""
            if copy.statement is not None:
                stated += f"\x02{copy.statement.name}\x01{copy.statement.at(offset)}".encode()
            number = next_numbers[copy.queue_id]
            record = encode_record(
                topic.encode(), copy.queue_id, number, offset, copy.flag, copy.sys_flag, copy.born_timestamp_ms,
                copy.born_host, store_ms, copy.store_host, copy.reconsume_times, copy.prepared_transaction_offset,
                copy.body, stated, copy.body_crc,
            )  # fmt: skip
            if at + len(record) > room_bytes:
                break
            next_numbers[copy.queue_id] += 1
            records.append(record)
            entries[copy.queue_id].append(
                ENTRY.pack(offset, len(record), tags_code(copy.properties.get(names.TAGS, "")))
            )
            unique, more = copy.properties.get(names.UNIQUE_KEY), copy.properties.get(names.KEYS)
            texts = [] if unique is None else [unique]
            texts += [key for key in indexed_keys(more or "") if key]
            keys += [INDEXED_KEY.pack(index_key_hash(topic, text), offset, store_ms) for text in texts]
            if sums and sums[-1][0] == pending.due_ms:
                due_ms, messages, size = sums.pop()
                sums.append((due_ms, messages + 1, size + len(record)))
            else:
                sums.append((pending.due_ms, 1, len(record)))
            last_at, at = at, at + len(record)
        queues = [
            (queue_id, number, b"".join(of_queue))
            for queue_id, (number, of_queue) in enumerate(zip(numbers, entries, strict=True))
            if of_queue
        ]
        return len(records), last_at, b"".join(records), b"".join(keys), queues, sums


def _needs_python(data: bytes) -> bool:
    """Return whether the properties of a plain record are not UTF-8, or too many."""
    try:
        return decode_record(data).raw_properties.decode().count(PAIR_SEPARATOR) >= MAX_PAIRS
    except UnicodeDecodeError:
        return True
