"""Brokers that follow a log, and what they derive from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from delaymq.broker.broker import Broker
from delaymq.broker.opening import open_broker
from delaymq.message import names
from delaymq.message.marks import parse_due, parse_mark
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMark, parse_own_mark
from delaymq.schedule.timeline.inspection import find_identities
from delaymq.store.reader import StoreReader

from delaymq_testing.broker.harness import Clock, broker_config
from delaymq_testing.store.small_stores import flush

LEVELS = "1s 5s 10s 20s 1m"
_folders = itertools.count(1)


class Follower:
    """A replica of a log, in a folder of its own."""

    def __init__(self, folder: Path, clock: Clock, **changes: Any) -> None:
        self.path = folder / f"follower{next(_folders)}"
        self.clock = clock
        settings = {"message_delay_level": LEVELS, "mapped_file_size_consume_queue": 40_000}
        self.config = broker_config(self.path, **(settings | changes))
        self.broker = open_broker(self.config, clock, follows=True)

    def receive(self, log: bytes, end: int, chance: Random) -> None:
        """Receive the log up to `end`, a boundary of records, in random pieces."""
        store = self.broker.store
        while (start := store.received_offset) < end:
            store.append_raw(start, log[start : min(start + chance.choice([7, 300, 5_000, 60_000]), end)])
            while chance.random() < 0.3 and self.broker.delivery.maintain():
                pass

    def snapshot(self) -> None:
        """Take a snapshot of everything that was received."""
        task = self.broker.store.snapshot_task(force=True)
        assert task is not None
        task.run()
        assert task.finish() is None

    def restart(self, *, kill: bool, follows: bool = True) -> None:
        """Stop, and open the store again."""
        if kill:
            self.broker.store.abandon()
        else:
            self.broker.close()
        self.broker = open_broker(self.config, self.clock, follows=follows)

    def close(self) -> None:
        """Release the store."""
        self.broker.store.abandon()


def recovered(folder: Path, clock: Clock, log: bytes, end: int, **changes: Any) -> Follower:
    """A broker that has just been started on a log, of which it knew nothing before."""
    fresh = Follower(folder, clock, **changes)
    fresh.broker.store.append_raw(0, log[:end])
    flush(fresh.broker.store)
    fresh.broker.store.abandon()
    (fresh.path / "store" / "delaymq" / "snapshot.json").unlink(missing_ok=True)
    fresh.broker = open_broker(fresh.config, clock)
    assert not fresh.broker.store.recovery.snapshot_used
    return fresh


def state_of(broker: Broker, places: set[int]) -> dict[str, object]:
    """What a broker knows about pending messages and transactions. `places` are those of all records.

    A follower decides open cases first, as before a snapshot.
    """
    delivery, ledger = broker.delivery, broker.transactions.ledger
    if broker.following is not None:
        broker.following.decide()
    while delivery.timeline.sweep.step():
        pass
    partitions = delivery.timeline.partitions
    pending = find_identities(delivery.timeline, places)
    return {
        "pending": sorted(
            (each.due_ms, each.identity, each.record, each.size, partitions.key(each.partition)[::2],
             partitions.owner(each.owner))
            for each in pending.values()
        ),
        "total": delivery.pending_total(),
        "counts": {
            level: (partitions.of_level(level).messages, partitions.of_level(level).bytes) for level in range(6)
        },
        "topics": {topic: delivery.pending_of_topic(topic) for topic in ("orders", "invoices", "TransTopic")},
        "oldest": delivery.timeline.holders.first(),
        "queues": {queue_id: queue.as_json() for queue_id, queue in sorted(delivery._queues.items())},
        "pauses": sorted(delivery.pauses.as_json()),
        "transactions": ledger.state(),
        "halves": broker.transactions.totals().pending,
        "version": broker.store.format_version,
    }  # fmt: skip


def kept_state_of(broker: Broker, places: set[int]) -> dict[str, object]:
    """The same without what a cut leaves: a version that the tail needed, and levels that only the tail used."""
    state = state_of(broker, places)
    del state["version"]
    queues = state["queues"]
    assert isinstance(queues, dict)
    unused = {"low": 0, "above": [], "foreign": []}
    return state | {"queues": {queue_id: queue for queue_id, queue in queues.items() if queue != unused}}


def copies_in(path: Path) -> Iterator[tuple[Record, tuple[object, ...], int | None]]:
    """The copies of delayed messages in a log: record, what was delivered, and its due time if the record states it.

    This reads the log alone.
    """
    for record in StoreReader(path).records():
        text = record.properties.get(names.MARK)
        if text is None or record.topic in names.INTERNAL_TOPICS or record.topic == names.SCHEDULE_DLQ_TOPIC:
            continue
        mark = parse_own_mark(text, record.physical_offset)
        if isinstance(mark, TimedMark):
            yield record, (mark.identity, mark.run), mark.due_ms
        elif (level_mark := parse_mark(text)) is not None:
            queue_id, offset = level_mark.queue_id, level_mark.queue_offset
            due_ms = parse_due(record.properties.get(names.DUE, ""), queue_id, offset)
            yield record, ("level", queue_id, offset), due_ms


def check_copies(path: Path) -> list[tuple[str, str | None, int]]:
    """Check that nothing was delivered twice or early; return topic, unique id and store time of each copy."""
    seen: set[tuple[object, ...]] = set()
    found = []
    for record, origin, due_ms in copies_in(path):
        assert origin not in seen, f"{origin} was delivered twice"
        seen.add(origin)
        assert due_ms is None or record.store_timestamp_ms >= due_ms, f"{origin} was delivered early"
        found.append((record.topic, record.properties.get(names.UNIQUE_KEY), record.store_timestamp_ms))
    return sorted(found, key=str)
