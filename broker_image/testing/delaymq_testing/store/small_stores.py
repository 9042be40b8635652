"""What the store's tests share."""

from __future__ import annotations

from pathlib import Path

from delaymq.message.flags import TRANSACTION_COMMIT, transaction_type
from delaymq.store.consume_queue import ENTRY
from delaymq.store.message_store import MessageStore
from delaymq.store.model import Dispatched, NewRecord
from delaymq.store.options import StoreOptions
from delaymq.store.reader import StoreReader

GOLDEN = Path(__file__).parents[3] / "tests" / "golden"
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
HOST_IPV6 = bytes(15) + b"\x01" + bytes([0, 0, 0x2A, 0x9F])
SMALL = StoreOptions(
    commit_log_file_bytes=16_384,
    consume_queue_file_bytes=400,
    index_slots=200,
    index_entries=400,
    snapshot_interval_bytes=8_192,
)


class Clock:
    """Milliseconds that the test sets; each look moves it by `step_ms`."""

    def __init__(self, start_ms: int = 1_700_000_000_000, step_ms: int = 0) -> None:
        self.ms = start_ms
        self.step_ms = step_ms

    def __call__(self) -> int:
        self.ms += self.step_ms
        return self.ms


class Watcher:
    """An observer that remembers where each record of one topic stands."""

    name = "watcher"

    def __init__(self, topic: str = "Watched") -> None:
        self.topic = topic
        self.offsets: list[int] = []
        self.restored_from: object | None = None

    def restore(self, state: object | None) -> None:
        self.restored_from = state
        self.offsets = list(state) if isinstance(state, list) else []

    def dispatch(self, record: Dispatched) -> None:
        if record.topic == self.topic:
            self.offsets.append(record.physical_offset)

    def state(self) -> object:
        return list(self.offsets)


def message(
    unique: str,
    *,
    topic: str = "Orders",
    queue_id: int = 0,
    body: bytes = b"body",
    host: bytes = HOST,
    sys_flag: int = 0,
    **properties: str,
) -> NewRecord:
    return NewRecord(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties={"UNIQ_KEY": unique, **properties},
        flag=7,
        sys_flag=sys_flag,
        born_timestamp_ms=1_699_999_999_000,
        born_host=host,
        store_host=host,
    )


def flush(store: MessageStore) -> None:
    task = store.flush_task()
    if task is not None:
        task.run()
        assert task.finish() is None


def snapshot(store: MessageStore) -> None:
    task = store.snapshot_task(force=True)
    assert task is not None
    task.run()
    assert task.finish() is None


def entries_of(store: MessageStore, topic: str, queue_id: int, start: int = 0) -> list[tuple[int, int, int]]:
    """All entries of a queue, by as many reads as it takes."""
    found: list[tuple[int, int, int]] = []
    while data := store.read_entries(topic, queue_id, start + len(found), 1_000):
        found += ENTRY.iter_unpack(data)
    return found


def expected_queues(path: str | Path) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """Queue offset, physical offset and size of each record, by queue, from the log alone."""
    queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for record in StoreReader(path).records():
        if transaction_type(record.sys_flag) in (0, TRANSACTION_COMMIT):
            key = record.topic, record.queue_id
            queues.setdefault(key, []).append((record.queue_offset, record.physical_offset, record.size))
    return queues


def kinds(store: MessageStore) -> list[str]:
    """What recovery put right, in order."""
    return [correction.what for correction in store.recovery.corrections]
