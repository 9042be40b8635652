"""Deletion by age and by disk use, never past a pin; many queues; large sizes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from delaymq.store.disk.files import Files
from delaymq.store.message_store import MessageStore
from delaymq.store.options import StoreOptions
from delaymq.store.tools.verify import SOUND, verify
from delaymq_testing.store.small_stores import SMALL, Clock, Watcher, entries_of, flush, message, snapshot

Open = Callable[..., MessageStore]
HOUR_MS = 3_600_000


class Disk(Files):
    """A disk as full as the test says."""

    ratio = 0.1

    def disk_used_ratio(self, path: str) -> float:
        return self.ratio


@pytest.fixture
def disk() -> Disk:
    return Disk()


def hour_of(clock: Clock) -> int:
    return time.localtime(clock.ms / 1000).tm_hour


@pytest.fixture
def filled(open_store: Open, clock: Clock, disk: Disk, tmp_path: Path) -> MessageStore:
    """A store of 8 flushed segments, all written just now."""
    options = replace(SMALL, delete_when=((hour_of(clock) + 1) % 24,), index_entries=60, index_slots=30)
    store = open_store(files=disk, options=options)
    for number in range(110):
        store.append(message(f"u{number}", queue_id=number % 2, body=bytes(1_000)))
    flush(store)
    while store.write_behind():
        pass
    for path in (tmp_path / "store/commitlog").iterdir():
        os.utime(path, (clock.ms / 1000, clock.ms / 1000))
    return store


def segments(tmp_path: Path) -> int:
    return len(list((tmp_path / "store/commitlog").iterdir()))


def test_old_segments_are_deleted_only_in_the_configured_hour(
    filled: MessageStore, clock: Clock, tmp_path: Path
) -> None:
    count = segments(tmp_path)
    assert count >= 8
    clock.ms += 71 * HOUR_MS
    for _ in range(24):
        assert filled.clean(clock.ms) == []
        clock.ms += 60_000
    clock.ms += 30 * HOUR_MS
    while hour_of(clock) != filled.options.delete_when[0]:
        assert filled.clean(clock.ms) == []
        clock.ms += HOUR_MS
    assert filled.clean(clock.ms)
    assert segments(tmp_path) == 1  # never the last one
    assert filled.min_offset == (count - 1) * 16_384


def test_old_segments_are_deleted_at_any_hour_above_three_quarters(
    filled: MessageStore, clock: Clock, disk: Disk, tmp_path: Path
) -> None:
    disk.ratio = 0.80
    assert filled.clean(clock.ms) == []
    clock.ms += 73 * HOUR_MS
    assert filled.clean(clock.ms)
    assert segments(tmp_path) == 1


def test_segments_are_deleted_regardless_of_age_above_85_percent(
    filled: MessageStore, clock: Clock, disk: Disk, tmp_path: Path
) -> None:
    disk.ratio = 0.86
    assert filled.clean(clock.ms)
    assert segments(tmp_path) == 1


def test_nothing_is_deleted_past_a_pin(filled: MessageStore, clock: Clock, disk: Disk, tmp_path: Path) -> None:
    disk.ratio = 0.95
    pinned: int | None = 40_000
    filled.pins.hold("schedule", lambda: pinned)
    filled.pins.hold("nothing", lambda: None)
    assert len([p for p in filled.clean(clock.ms) if "/commitlog/" in p]) == 2
    assert filled.min_offset == 32_768
    assert filled.read_entries("Orders", 0, filled.queue_bounds("Orders", 0)[0], 1)
    assert filled.record_at(32_768)
    assert filled.clean(clock.ms) == []
    assert filled.disk_state().writes_refused
    [report] = filled.pins.report()
    assert (report.holder, report.offset, report.pinned_bytes) == ("schedule", 40_000, filled.end_offset - 40_000)
    pinned = None
    assert filled.clean(clock.ms)
    filled.pins.release("schedule")
    assert segments(tmp_path) == 1


def test_unflushed_segments_are_kept(open_store: Open, disk: Disk, clock: Clock, tmp_path: Path) -> None:
    store = open_store(files=disk)
    for number in range(60):
        store.append(message(f"u{number}", body=bytes(1_000)))
    disk.ratio = 0.9
    assert store.clean(clock.ms) == []
    flush(store)
    assert store.clean(clock.ms)


def test_segments_being_synced_are_kept(open_store: Open, disk: Disk, clock: Clock) -> None:
    store = open_store(files=disk)
    for number in range(60):
        store.append(message(f"u{number}", body=bytes(1_000)))
    slow = store.snapshot_task(force=True)
    assert slow is not None
    flush(store)
    disk.ratio = 0.86
    assert store.clean(clock.ms) == []
    slow.run()
    assert slow.finish() is None
    assert store.clean(clock.ms)


def test_queues_and_index_are_deleted_with_the_log(
    filled: MessageStore, clock: Clock, disk: Disk, tmp_path: Path
) -> None:
    snapshot(filled)
    before = len(list((tmp_path / "store/index").iterdir()))
    disk.ratio = 0.86
    removed = filled.clean(clock.ms)
    assert any("/consumequeue/" in path for path in removed)
    assert any("/index/" in path for path in removed)
    assert len(list((tmp_path / "store/index").iterdir())) < before
    for queue_id in (0, 1):
        first, end = filled.queue_bounds("Orders", queue_id)
        assert 0 < first < end == 55
        assert entries_of(filled, "Orders", queue_id, first)[0][0] >= filled.min_offset
        assert filled.store_time_of("Orders", queue_id, first - 1) is None
        assert filled.offset_by_time("Orders", queue_id, 0) == first
    assert filled.query_index("Orders", "u109", 64, 0, 1 << 62)


@pytest.mark.parametrize("how", ["closed", "killed", "without snapshot"])
def test_queue_offsets_continue_after_the_queues_log_is_deleted(
    filled: MessageStore, clock: Clock, disk: Disk, open_store: Open, how: str, tmp_path: Path
) -> None:
    filled.append(message("quiet", topic="Quiet"))
    for number in range(30):
        filled.append(message(f"v{number}", body=bytes(1_000)))
    flush(filled)
    snapshot(filled)
    disk.ratio = 0.86
    filled.clean(clock.ms)
    bounds = {queue: filled.queue_bounds(*queue) for queue in filled.queues()}
    assert bounds[("Quiet", 0)] == (1, 1)
    if how == "closed":
        filled.close()
    else:
        filled.abandon()
    if how == "without snapshot":
        (tmp_path / "store/delaymq/snapshot.json").unlink()
    watcher = Watcher()
    store = open_store(files=disk, observers=[watcher])
    assert {queue: store.queue_bounds(*queue) for queue in store.queues()} == bounds
    disk.ratio = 0.1
    store.clean(clock.ms)
    assert store.append(message("again", topic="Quiet")).queue_offset == 1
    store.close()
    assert verify(tmp_path / "store").exit_code == SOUND
    assert verify(tmp_path / "store").rebuildable == []


def test_ten_thousand_queues_use_little_space(open_store: Open) -> None:
    def resident_bytes() -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon")

    store = open_store(options=replace(SMALL, commit_log_file_bytes=4 << 20, index_enable=False))
    before = resident_bytes()
    for topic in range(1_250):
        for queue_id in range(8):
            store.append(message("u", topic=f"Topic{topic}", queue_id=queue_id))
    while store.write_behind():
        pass
    assert len(list(store.queues())) == 10_000
    assert (resident_bytes() - before) / 10_000 < 1_000
    assert len(os.listdir("/proc/self/fd")) < 400
    store.abandon()
    store = open_store()
    assert store.queue_bounds("Topic1249", 7) == (0, 1)


def test_default_file_sizes_allocate_no_unused_space(open_store: Open, tmp_path: Path) -> None:
    store = open_store(options=replace(StoreOptions(), commit_log_file_bytes=1 << 20))
    for number in range(10):
        store.append(message(str(number), topic=f"T{number}", KEYS="a b"))
    store.close()
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) > 470_000_000
    assert sum(path.stat().st_blocks for path in files) * 512 < 30_000_000
    assert verify(tmp_path / "store").exit_code == SOUND
    store = open_store()
    assert len(store.query_index("T3", "b", 64, 0, 1 << 62)) == 1
