"""The replicated offset: what readers see, what snapshots state, and what counts as durable."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from delaymq.store.message_store import MessageStore
from delaymq_testing.repetitions import SEED
from delaymq_testing.store.raw_logs import log_of, random_life, receive, state_of
from delaymq_testing.store.small_stores import SMALL, Clock, Watcher, entries_of, flush, kinds, message

Open = Callable[..., MessageStore]


def append(store: MessageStore, count: int, *, topic: str = "Orders") -> list[int]:
    """Append records; their ends."""
    return [
        record.physical_offset + record.size
        for record in (store.append(message(f"u{number}", topic=topic)) for number in range(count))
    ]


def stated_log_end(path: Path) -> int | None:
    """The end that the snapshot on disk states."""
    file = path / "delaymq" / "snapshot.json"
    return json.loads(file.read_bytes())["logEnd"] if file.exists() else None


@pytest.mark.parametrize("sync_flush", [False, True])
def test_without_replicas_the_offsets_are_those_of_one_disk(open_store: Open, sync_flush: bool) -> None:
    store = open_store(options=replace(SMALL, sync_flush=sync_flush))
    append(store, 3)
    flush(store)
    flushed = store.flushed_offset
    append(store, 3)
    assert not store.is_replicated
    assert store.durable_offset == flushed
    assert store.replicated_offset == store.end_offset
    assert store.confirmed_offset == (flushed if sync_flush else store.end_offset)
    assert store.queue_bounds("Orders", 0) == store.stored_bounds("Orders", 0) == (0, 6)


@pytest.mark.parametrize("sync_flush", [False, True])
def test_confirmed_is_what_both_disk_and_replicas_have(open_store: Open, sync_flush: bool) -> None:
    store = open_store(options=replace(SMALL, sync_flush=sync_flush))
    ends = append(store, 2)
    flush(store)
    ends += append(store, 4)
    for has, end in enumerate([0, *ends]):
        store.set_replicated(end)
        on_disk = min(end, ends[1])
        assert store.replicated_offset == end
        assert store.durable_offset == on_disk
        assert store.confirmed_offset == (on_disk if sync_flush else end)
        assert store.queue_bounds("Orders", 0) == (0, min(has, 2) if sync_flush and has < 6 else has)
        assert store.stored_bounds("Orders", 0) == (0, 6)
    store.set_replicated(1 << 40)
    assert store.replicated_offset == store.end_offset
    store.set_replicated(None)
    assert not store.is_replicated


def test_queue_bounds_stop_at_confirmed_whatever_the_queue_contains(
    tmp_path: Path, open_store: Open, clock: Clock
) -> None:
    chance = Random(SEED)
    store = open_store(observers=[Watcher()])
    random_life(store, chance, clock, 100)
    queues = {key: [entry[0] for entry in entries_of(store, *key)] for key in store.queues()}
    for _ in range(40):
        confirmed = chance.randrange(store.end_offset)
        store.set_replicated(confirmed)
        for (topic, queue_id), offsets in queues.items():
            low, _ = store.stored_bounds(topic, queue_id)
            expected = sum(offset < confirmed for offset in offsets)
            assert store.queue_bounds(topic, queue_id) == (min(low, low + expected), low + expected)
            assert store.offset_by_time(topic, queue_id, 1 << 50) <= max(low + expected - 1, low)


def test_snapshot_is_written_when_replicas_have_its_log(tmp_path: Path, open_store: Open, clock: Clock) -> None:
    store = open_store(observers=[Watcher()])
    append(store, 5, topic="Watched")
    captured = store.end_offset
    store.set_replicated(captured - 1)
    assert store.snapshot_task(force=True) is None
    append(store, 5, topic="Watched")
    assert store.snapshot_task(force=True) is None
    store.set_replicated(captured)
    task = store.snapshot_task()
    assert task is not None
    task.run()
    assert task.finish() is None
    assert stated_log_end(tmp_path / "store") == captured
    before = state_of(store)
    store.abandon()
    watcher = Watcher()
    reopened = open_store(observers=[watcher])
    assert reopened.recovery.snapshot_used
    assert reopened.recovery.replayed_records == 5
    assert len(watcher.offsets) == 10
    assert state_of(reopened) == before


@pytest.mark.parametrize("gathers", [False, True])
def test_stop_with_records_that_replicas_lack_keeps_the_former_snapshot(
    tmp_path: Path, open_store: Open, clock: Clock, gathers: bool
) -> None:
    chance = Random(SEED)
    store = open_store(observers=[Watcher()])
    random_life(store, chance, clock, 40)
    store.close()
    confirmed = store.end_offset
    store = open_store(observers=[Watcher()])
    store.set_replicated(confirmed)
    random_life(store, chance, clock, 40)
    data = log_of(store)
    if gathers:
        assert store.snapshot_task(force=True) is None
    before = state_of(store)
    store.close()
    assert stated_log_end(tmp_path / "store") == confirmed
    reopened = open_store(observers=[Watcher()])
    assert reopened.recovery.clean
    assert not kinds(reopened)
    assert state_of(reopened) == before
    again = open_store(tmp_path / "again", observers=[Watcher()])
    receive(again, data, chance)
    assert state_of(again) == before


def test_segments_are_kept_while_a_snapshot_waits(open_store: Open, clock: Clock) -> None:
    store = open_store(observers=[Watcher()])
    random_life(store, Random(SEED), clock, 60)
    store.set_replicated(0)
    assert store.snapshot_task(force=True) is None
    flush(store)
    first = store.min_offset
    store.clean(clock.ms + (1 << 40), at_any_hour=True)
    assert store.min_offset == first
