"""Logs of random records, and their bytes as another broker receives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from delaymq.message.flags import HOST_MASK, TRANSACTION_COMMIT, TRANSACTION_PREPARED
from delaymq.message.names import TIMER_TOPIC
from delaymq.message.timed_marks import first_due
from delaymq.store.message_store import MessageStore

from delaymq_testing.store.small_stores import HOST_IPV6, Clock, entries_of, message


def random_life(store: MessageStore, chance: Random, clock: Clock, records: int) -> None:
    """Append records of all kinds."""
    for number in range(records):
        clock.ms += chance.randrange(3)
        topic = chance.choice(["Watched", "Watched", "Orders", "Recreated"])
        body = chance.randbytes(chance.choice([0, 50, 300, 2_000, 9_000]))
        record = message(f"u{number}", topic=topic, queue_id=chance.randrange(3), body=body, KEYS=f"k{number % 50}")
        kind = chance.randrange(12)
        if kind == 0:
            record = record._replace(sys_flag=TRANSACTION_PREPARED)
        elif kind == 1:
            record = record._replace(sys_flag=TRANSACTION_COMMIT, prepared_transaction_offset=1)
        elif kind == 2:
            record = record._replace(born_host=HOST_IPV6, store_host=HOST_IPV6, sys_flag=HOST_MASK)
        elif kind == 3:
            record = record._replace(topic=TIMER_TOPIC, queue_id=0, statement=first_due(clock.ms + 5_000))
        elif kind == 4:
            store.append_batch([record._replace(body=body[:300])] * 3)
            continue
        store.append(record)


def log_of(store: MessageStore) -> bytes:
    """The bytes of the log, with the padding at the ends of segments."""
    folder = Path(store.path) / "commitlog"
    data = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    return data[: store.end_offset - store.min_offset]


def segments_of(store: MessageStore) -> dict[str, bytes]:
    """The content of each segment that is not empty."""
    segments = {path.name: path.read_bytes() for path in sorted((Path(store.path) / "commitlog").iterdir())}
    return {name: data for name, data in segments.items() if data.strip(b"\0")}


def cuts(data: bytes, chance: Random, largest: int) -> Iterator[tuple[int, bytes]]:
    """Position and bytes of random pieces."""
    position = 0
    while position < len(data):
        size = chance.choice([1, 3, 8, chance.randint(1, 200), chance.randint(1, largest)])
        yield position, data[position : position + size]
        position += size


def receive(store: MessageStore, data: bytes, chance: Random, start: int = 0, largest: int = 40_000) -> None:
    """Append the log's bytes from `start` on in random pieces."""
    for offset, piece in cuts(data, chance, largest):
        assert store.received_offset == start + offset or not store.end_offset
        store.append_raw(start + offset, piece)


def state_of(store: MessageStore) -> dict[str, object]:
    """Everything that the store derives from its log. A queue without entries may have a folder or not."""
    return {
        "ends": (store.min_offset, store.end_offset, store.last_offset, store.last_store_timestamp_ms),
        "queues": {
            key: (store.stored_bounds(*key), entries_of(store, *key))
            for key in sorted(store.queues())
            if store.next_queue_offset(*key)
        },
        "keys": {
            (topic, f"k{number}"): sorted(store.query_index(topic, f"k{number}", 1_000, 0, 1 << 62))
            for topic in ("Watched", "Orders", "Recreated")
            for number in range(50)
        },
    }
