"""Snapshots of stores with thousands of queues: written in small steps, and consistent with their start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from delaymq.store.disk.files import Files
from delaymq.store.message_store import MessageStore
from delaymq.store.model import StoreTask
from delaymq_testing.store.small_stores import entries_of, flush, message

Open = Callable[..., MessageStore]
QUEUES = 700
MOST_AT_ONCE = 64


def fill(store: MessageStore, queues: int = QUEUES) -> None:
    for number in range(queues):
        store.append(message(f"u{number}", topic=f"T{number % 70}", queue_id=number // 70))


def queue_files(path: Path) -> int:
    return sum(1 for each in (path / "store/consumequeue").rglob("*") if each.is_file())


def task_in_steps(store: MessageStore, path: Path, between: Callable[[], object] = lambda: None) -> StoreTask:
    """Asks for a snapshot until there is one; no step may write many queues."""
    for _ in range(20):
        before = queue_files(path)
        task = store.snapshot_task()
        assert queue_files(path) - before <= MOST_AT_ONCE
        if task is not None:
            return task
        between()
    raise AssertionError("no snapshot in 20 steps")


def test_thousands_of_new_queues_are_written_in_steps_before_their_snapshot(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    fill(store)
    task = task_in_steps(store, tmp_path)
    assert queue_files(tmp_path) == QUEUES
    task.run()
    assert task.finish() is None
    store.abandon()
    store = open_store()
    assert store.recovery.snapshot_used
    assert store.recovery.replayed_records == 0


def test_one_call_syncs_a_bounded_number_of_queue_files(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    class CountingFiles(Files):
        synced: ClassVar[list[str]] = []

        def sync_filesystem(self, folder: str) -> bool:
            self.synced.append(folder)
            return super().sync_filesystem(folder)

    monkeypatch.setattr("delaymq.store.snapshot.snapshot.MANY_FILES", QUEUES)
    store = open_store(files=CountingFiles())
    fill(store)
    store.close()
    assert len(CountingFiles.synced) == 1
    store = open_store()
    assert store.recovery.clean
    assert store.recovery.snapshot_used


def test_records_arriving_while_queues_are_written_are_replayed(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    fill(store)
    sent = 0

    def send_more() -> None:
        nonlocal sent
        for queue_id in (0, 5, 200 + sent):
            store.append(message(f"more{sent}", topic="T1", queue_id=queue_id))
            sent += 1

    task = task_in_steps(store, tmp_path, send_more)
    assert sent > 0
    task.run()
    assert task.finish() is None
    queues = sorted(store.queues())
    expected = {queue: entries_of(store, *queue, 0) for queue in queues}
    store.abandon()
    store = open_store()
    assert store.recovery.snapshot_used
    assert store.recovery.replayed_records == sent
    assert {queue: entries_of(store, *queue, 0) for queue in sorted(store.queues())} == expected


def test_steady_stream_into_all_queues_does_not_prevent_a_snapshot(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    fill(store)
    task = task_in_steps(store, tmp_path, lambda: fill(store))
    task.run()
    assert task.finish() is None
    store.abandon()
    assert open_store().recovery.snapshot_used


def test_stop_or_deleted_topic_ends_snapshot_writing(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    fill(store)
    assert store.snapshot_task() is None
    store.delete_topic("T3")
    task = task_in_steps(store, tmp_path)
    task.run()
    assert task.finish() is None
    fill(store)
    assert store.snapshot_task() is None
    store.close()
    store = open_store()
    assert store.recovery.clean
    assert store.recovery.snapshot_used
    assert store.recovery.replayed_records == 0


class FolderSyncs(Files):
    """Remembers which folders were synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync_folder(self, path: str) -> None:
        self.synced.append(path)
        super().sync_folder(path)


def test_flush_during_a_snapshot_syncs_a_new_segments_folder(open_store: Open) -> None:
    files = FolderSyncs()
    store = open_store(files=files)
    flush(store)
    task = store.allocation_task()
    assert task is not None
    task.run()
    assert task.finish() is None
    while store.end_offset < 17_000:
        store.append(message("x", body=bytes(1_000)))
    slow = store.snapshot_task(force=True)
    assert slow is not None
    files.synced.clear()
    flush(store)
    assert [path for path in files.synced if path.endswith("/commitlog")]
    assert store.flushed_offset == store.end_offset
    slow.run()
    assert slow.finish() is None
