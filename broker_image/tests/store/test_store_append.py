"""Appending, reading, flushing, rolling, stopping."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delaymq.message.errors import IllegalMessageError
from delaymq.message.flags import BORN_HOST_IPV6, STORE_HOST_IPV6
from delaymq.message.levels import DelayLevels
from delaymq.message.marks import format_due
from delaymq.message.names import DUE, SCHEDULE_TOPIC
from delaymq.store.disk.files import Files
from delaymq.store.errors import (
    NotAStoreError,
    RecordTooLargeError,
    StoreClosedError,
    StoreFailedError,
    StoreFullError,
    StoreLockedError,
)
from delaymq.store.message_store import MessageStore
from delaymq.store.tools.verify import SOUND, verify
from delaymq_testing.store.small_stores import (
    HOST_IPV6,
    SMALL,
    Clock,
    Watcher,
    entries_of,
    expected_queues,
    flush,
    message,
    snapshot,
)

Open = Callable[..., MessageStore]


def test_appended_records_are_read_back(open_store: Open) -> None:
    store = open_store()
    appended = store.append(message("one", body="Grüße".encode(), TAGS="a", KEYS="k1 k2"))
    record = store.record_at(appended.physical_offset)
    assert record is not None
    assert record.body == "Grüße".encode()
    assert record.properties == {"UNIQ_KEY": "one", "TAGS": "a", "KEYS": "k1 k2"}
    assert record.flag == 7
    assert (record.queue_offset, record.size) == (0, appended.size)
    assert store.record_from(appended.physical_offset, appended.size) == record
    assert store.read_bytes(appended.physical_offset, appended.size) == record.encoded()
    assert store.query_index("Orders", "k2", 10, 0, 1 << 62) == [0]
    assert store.record_at(1) is None
    assert store.record_at(-5) is None
    assert store.read_bytes(0, store.end_offset + 1) == b""


def test_records_of_all_sizes_are_read_at_their_places(open_store: Open) -> None:
    store = open_store()
    bodies = [bytes([size % 256]) * size for size in (0, 100, 800, 900, 1_000, 1_100, 5_000, 10_000) * 4]
    places = [store.append(message(str(number), body=body)) for number, body in enumerate(bodies)]
    assert len(list(Path(store.path, "commitlog").iterdir())) > 1
    for place, body in zip(places, bodies, strict=True):
        record = store.record_at(place.physical_offset)
        assert record is not None
        assert (record.body, record.size) == (body, place.size)
    assert store.record_at(store.end_offset) is None


def test_ipv6_hosts_set_their_flags(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    appended = store.append(message("six", host=HOST_IPV6))
    record = store.record_at(appended.physical_offset)
    assert record is not None
    assert record.sys_flag == BORN_HOST_IPV6 | STORE_HOST_IPV6
    assert store.store_time_of("Orders", 0, 0) == record.store_timestamp_ms
    store.abandon()
    assert open_store().queue_bounds("Orders", 0) == (0, 1)


def test_entries_are_readable_before_and_after_they_are_written(open_store: Open) -> None:
    store = open_store()
    offsets = [store.append(message(str(n))).physical_offset for n in range(50)]
    assert [entry[0] for entry in entries_of(store, "Orders", 0)] == offsets
    while store.write_behind():
        pass
    offsets += [store.append(message(str(n))).physical_offset for n in range(50, 75)]
    assert [entry[0] for entry in entries_of(store, "Orders", 0)] == offsets
    assert len(store.read_entries("Orders", 0, 15, 32)) == 5 * 20  # a file ends after 20 entries
    assert store.read_entries("Orders", 0, 75, 1) == b""
    assert store.read_entries("Nothing", 0, 0, 1) == b""


def test_record_never_crosses_a_segment(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    placed = [store.append(message(str(n), body=bytes(n * 37 % 3_000))) for n in range(100)]
    for one in placed:
        first, last = one.physical_offset // 16_384, (one.physical_offset + one.size + 7) // 16_384
        assert first == last
    store.close()
    assert verify(tmp_path / "store").records == 100
    assert verify(tmp_path / "store").exit_code == SOUND


def test_record_may_fill_a_segment_to_its_last_eight_bytes(open_store: Open) -> None:
    store = open_store()
    overhead = store.append(message("x", body=b"")).size
    store.append(message("y", body=bytes(16_384 - 8 - 2 * overhead)))
    assert store.end_offset == 16_384 - 8
    assert store.append(message("z", body=bytes(16_384 - 8 - overhead))).physical_offset == 16_384
    with pytest.raises(RecordTooLargeError, match="mappedFileSizeCommitLog"):
        store.append(message("w", body=bytes(16_384 - 7 - overhead)))
    store.abandon()
    store = open_store()
    assert store.end_offset == 2 * 16_384 - 8
    assert store.recovery.replayed_records == 3
    assert store.recovery.corrections == []


def test_batch_is_stored_in_one_segment_or_not_at_all(open_store: Open) -> None:
    store = open_store()
    store.append(message("first", body=bytes(12_000)))
    batch = store.append_batch([message(str(n), topic="Batch", body=bytes(1_000)) for n in range(6)])
    assert batch[0].physical_offset == 16_384
    assert [one.queue_offset for one in batch] == list(range(6))
    end = store.end_offset
    with pytest.raises(RecordTooLargeError):
        store.append_batch([message(str(n), topic="Batch", body=bytes(1_000)) for n in range(20)])
    assert (store.end_offset, store.queue_bounds("Batch", 0)) == (end, (0, 6))


def test_store_time_never_decreases(open_store: Open, clock: Clock) -> None:
    store = open_store()
    first = store.append(message("a")).store_timestamp_ms
    clock.ms -= 60_000
    assert store.append(message("b")).store_timestamp_ms == first
    store.abandon()
    assert open_store().append(message("c")).store_timestamp_ms == first


def test_flushing_advances_the_confirmed_offset(open_store: Open) -> None:
    store = open_store(options=replace(SMALL, sync_flush=True))
    assert store.flush_task() is None or store.end_offset == 0
    store.append(message("a"))
    end = store.end_offset
    assert store.confirmed_offset == 0
    task = store.flush_task()
    assert task is not None
    assert store.flush_task() is None  # one is under way
    store.append(message("b"))
    task.run()
    assert task.finish() is None
    assert store.flushed_offset == store.confirmed_offset == end
    flush(store)
    assert store.flushed_offset == store.end_offset
    assert store.flush_task() is None


def test_disk_that_loses_writes_stops_writing(open_store: Open) -> None:
    class Failing(Files):
        fails = False

        def fdatasync(self, descriptor: int) -> None:
            if self.fails:
                raise OSError(errno.EIO, "Input/output error")

    files = Failing()
    store = open_store(files=files)
    store.append(message("a"))
    files.fails = True
    task = store.flush_task()
    assert task is not None
    task.run()
    assert task.finish() is not None
    assert store.flushed_offset == 0
    with pytest.raises(StoreFailedError, match="restart the broker"):
        store.append(message("b"))
    store.close()
    files.fails = False
    assert not open_store(files=files).recovery.clean


def test_segments_are_preallocated(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    store.append(message("a"))
    task = store.allocation_task()
    assert task is not None
    assert store.allocation_task() is None  # one is under way
    task.run()
    assert task.finish() is None
    assert store.allocation_task() is None
    assert sorted(path.name for path in (tmp_path / "store/commitlog").iterdir()) == [
        "00000000000000000000",
        "00000000000000016384",
    ]
    assert not [path for path in (tmp_path / "store/delaymq").iterdir() if path.name.startswith("0")]


def test_segment_preallocated_too_late_is_discarded(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    store.append(message("a", body=bytes(15_000)))
    task = store.allocation_task()
    assert task is not None
    task.run()
    appended = store.append(message("b", body=bytes(15_000)))
    assert task.finish() is None
    record = store.record_at(appended.physical_offset)
    assert record is not None
    assert record.properties["UNIQ_KEY"] == "b"
    assert len(list((tmp_path / "store/commitlog").iterdir())) == 2


def test_full_disk_rejects_writes_and_recovers_automatically(open_store: Open) -> None:
    class Full(Files):
        full = False

        def allocate(self, descriptor: int, file_bytes: int) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().allocate(descriptor, file_bytes)

        def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().pwrite(descriptor, data, position)

    files = Full()
    store = open_store(files=files)
    stored = [store.append(message("a", body=bytes(9_000))).physical_offset]
    files.full = True
    for _ in range(3):
        with pytest.raises(StoreFullError, match="free space"):
            store.append(message("b", body=bytes(9_000)))
        with pytest.raises(StoreFullError, match="free space"):
            store.append_batch([message("b", body=bytes(9_000))])
    assert store.write_behind() is False
    assert store.snapshot_task(force=True) is None
    assert [entry[0] for entry in entries_of(store, "Orders", 0)] == stored
    assert store.record_at(0) is not None
    files.full = False
    stored.append(store.append(message("c", body=bytes(9_000))).physical_offset)
    snapshot(store)
    store.close()
    assert [entry[0] for entry in entries_of(open_store(files=files), "Orders", 0)] == stored


def test_nearly_full_disk_rejects_writes(open_store: Open, clock: Clock) -> None:
    class Nearly(Files):
        ratio = 0.5

        def disk_used_ratio(self, path: str) -> float:
            return self.ratio

    files = Nearly()
    store = open_store(files=files)
    files.ratio = 0.95
    store.append(message("not looked at yet"))
    store.clean(clock.ms)
    assert store.disk_state().writes_refused
    with pytest.raises(StoreFullError, match="95%"):
        store.append(message("b"))
    files.ratio = 0.5
    store.clean(clock.ms)
    store.append(message("c"))


def test_illegal_queues_are_rejected_before_anything_is_written(open_store: Open) -> None:
    store = open_store()
    for topic, queue_id in (("a/../b", 0), ("", 0), ("Orders", -1), ("t" * 128, 0)):
        with pytest.raises(IllegalMessageError):
            store.append(message("x", topic=topic, queue_id=queue_id))
        with pytest.raises(IllegalMessageError):
            store.append_batch([message("y"), message("x", topic=topic, queue_id=queue_id)])
    assert store.end_offset == 0


def test_tags_code_of_a_delayed_record_is_its_due_time(open_store: Open, clock: Clock) -> None:
    store = open_store()
    own: dict[str, Any] = {DUE: format_due(clock.ms + 123, 2, 0)}
    copied: dict[str, Any] = {DUE: format_due(clock.ms + 999_999, 2, 0)}
    store.append(message("a", topic=SCHEDULE_TOPIC, queue_id=2, DELAY="3", **own))
    store.append(message("b", topic=SCHEDULE_TOPIC, queue_id=2, DELAY="3", **copied))
    store.append(message("c", topic=SCHEDULE_TOPIC, queue_id=2, DELAY="3"))
    store.append(message("d", topic=SCHEDULE_TOPIC, queue_id=2, DELAY="99"))
    expected = [clock.ms + 123, clock.ms + 10_000, clock.ms + 10_000, clock.ms + 7_200_000]
    assert [entry[2] for entry in entries_of(store, SCHEDULE_TOPIC, 2)] == expected
    store.levels = DelayLevels.parse("1s 2s 3s")
    store.append(message("e", topic=SCHEDULE_TOPIC, queue_id=2, DELAY="3"))
    assert entries_of(store, SCHEDULE_TOPIC, 2)[-1][2] == clock.ms + 3_000


def test_store_is_locked_by_one_broker(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    with pytest.raises(StoreLockedError, match="this process"):
        open_store()
    program = (
        "import sys; from delaymq.store.disk.store_lock import StoreLock; from delaymq.store.disk.files import Files\n"
        "from delaymq.store.errors import StoreLockedError\n"
        "try: StoreLock(Files(), sys.argv[1])\n"
        "except StoreLockedError as error: print(error); sys.exit(7)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store/lock")]
    assert subprocess.run(command, timeout=30, check=False, capture_output=True).returncode == 7
    store.close()
    assert subprocess.run(command, timeout=30, check=False, capture_output=True).returncode == 0
    assert (tmp_path / "store/lock").read_bytes() == b"lock"


def test_store_of_a_later_version_is_left_unchanged(tmp_path: Path, open_store: Open) -> None:
    (tmp_path / "store/delaymq").mkdir(parents=True)
    (tmp_path / "store/delaymq/state.json").write_text('{"formatVersion":5,"epoch":0,"role":"master","storeId":"x"}')
    with pytest.raises(NotAStoreError, match="format version 5"):
        open_store()
    assert sorted(os.listdir(tmp_path / "store")) == ["delaymq"]


def test_closed_store_raises_a_clear_error(open_store: Open) -> None:
    store = open_store()
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.append(message("late"))


def test_observers_see_each_record_once_and_in_order(open_store: Open) -> None:
    watcher = Watcher("Orders")
    store = open_store(observers=[watcher])
    offsets = [store.append(message(str(n))).physical_offset for n in range(30)]
    snapshot(store)
    offsets += [store.append(message(str(n))).physical_offset for n in range(30, 40)]
    assert watcher.offsets == offsets
    store.abandon()
    again = Watcher("Orders")
    store = open_store(observers=[again])
    assert again.restored_from == offsets[:30]
    assert again.offsets == offsets
    assert store.recovery.replayed_records == 10


def test_unreadable_observer_state_invalidates_only_the_snapshot(open_store: Open) -> None:
    class Picky(Watcher):
        def restore(self, state: object | None) -> None:
            if state is not None:
                raise ValueError("of another version")
            super().restore(state)

    store = open_store(observers=[Picky("Orders")])
    offsets = [store.append(message(str(n))).physical_offset for n in range(30)]
    store.close()
    picky = Picky("Orders")
    store = open_store(observers=[picky])
    assert not store.recovery.snapshot_used
    assert store.recovery.corrections[0].what == "snapshot-stale"
    assert picky.offsets == offsets
    assert store.queue_bounds("Orders", 0) == (0, 30)


def test_recreated_topic_counts_from_zero_even_after_a_rebuild(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    for number in range(30):
        store.append(message(str(number), topic="Gone"))
        store.append(message(str(number), topic="Stays"))
    store.write_behind()
    store.delete_topic("Gone")
    assert not store.has_queue("Gone", 0)
    assert not (tmp_path / "store/consumequeue/Gone").exists()
    later = [store.append(message(f"new{n}", topic="Gone")).physical_offset for n in range(3)]
    assert store.queue_bounds("Gone", 0) == (0, 3)
    store.write_behind()
    assert [each.what for each in verify(tmp_path / "store").rebuildable] == ["not-stopped"]
    store.abandon()
    store = open_store()
    assert [entry[0] for entry in entries_of(store, "Gone", 0)] == later
    assert store.queue_bounds("Stays", 0) == (0, 30)


def test_offset_by_time_finds_the_nearest_entry(open_store: Open, clock: Clock) -> None:
    store = open_store()
    start = clock.ms
    for number in range(60):
        clock.ms = start + number // 2 * 100
        store.append(message(str(number)))
    assert store.offset_by_time("Orders", 0, start) == 0
    assert store.offset_by_time("Orders", 0, start - 5_000) == 0
    assert store.offset_by_time("Orders", 0, start + 500) == 10
    assert store.offset_by_time("Orders", 0, start + 540) == 11
    assert store.offset_by_time("Orders", 0, start + 560) == 12
    assert store.offset_by_time("Orders", 0, start + 1_000_000) == 59
    assert store.offset_by_time("Nothing", 0, start) == 0
    assert store.store_time_of("Orders", 0, 59) == start + 2_900
    assert store.store_time_of("Orders", 0, 60) is None


def test_snapshot_shortens_recovery(open_store: Open) -> None:
    store = open_store()
    assert store.snapshot_task() is None
    while store.snapshot_task is not None and store.end_offset < 9_000:
        store.append(message("x", body=bytes(500)))
    task = store.snapshot_task()
    assert task is not None
    assert store.snapshot_task(force=True) is None  # one is under way
    task.run()
    assert task.finish() is None
    assert store.snapshot_task() is None
    store.append(message("behind"))
    store.abandon()
    store = open_store()
    assert store.recovery.snapshot_used
    assert not store.recovery.clean
    assert store.recovery.replayed_records == 1


def test_index_spans_several_files(open_store: Open, clock: Clock, tmp_path: Path) -> None:
    clock.step_ms = 7
    store = open_store()
    offsets = {n: store.append(message(f"u{n}", KEYS=f"k{n} common")).physical_offset for n in range(500)}
    for stopped in ("running", "killed", "closed"):
        for number, offset in offsets.items():
            assert store.query_index("Orders", f"k{number}", 64, 0, 1 << 62) == [offset]
        assert store.query_index("Orders", "common", 64, 0, 1 << 62) == sorted(offsets.values(), reverse=True)[:64]
        assert store.query_index("Orders", "absent", 64, 0, 1 << 62) == []
        assert store.index_last_update[1] == offsets[499]
        if stopped == "running":
            snapshot(store)
            store.abandon()
        else:
            store.close()
        store = open_store()
    assert len(list((tmp_path / "store/index").iterdir())) == 4
    assert {path.stat().st_size for path in (tmp_path / "store/index").iterdir()} == {8_840}
    assert expected_queues(tmp_path / "store")[("Orders", 0)][-1][0] == 499


def test_index_query_respects_the_time_range(open_store: Open, clock: Clock) -> None:
    clock.step_ms = 1_000
    store = open_store()
    placed = [store.append(message(f"u{n}", KEYS="same")) for n in range(300)]
    times = [one.store_timestamp_ms for one in placed]
    found = store.query_index("Orders", "same", 64, times[100], times[110])
    assert found == [one.physical_offset for one in reversed(placed[100:111])]


def test_config_files_survive_damage(open_store: Open, tmp_path: Path) -> None:
    import json

    store = open_store()
    config = tmp_path / "store/config"
    assert store.config_files.load("topics.json", json.loads) is None
    store.config_files.save("topics.json", b'{"generation":1}')
    store.config_files.save("topics.json", b'{"generation":2}')
    (config / "topics.json").write_bytes(b'{"genera')
    assert store.config_files.load("topics.json", json.loads) == {"generation": 1}
    assert store.recovery.corrections[-1].what == "config-damaged"
    store.config_files.save("topics.json", b'{"generation":3}')
    assert (config / "topics.json.bak").read_bytes() == b'{"generation":1}'  # the damaged one did not replace it
    (config / "topics.json").unlink()
    assert store.config_files.load("topics.json", json.loads) == {"generation": 1}
    (config / "topics.json.bak").write_bytes(b"\xff\xfe")
    assert store.config_files.load("topics.json", json.loads) is None
    store.own_files.save("clients.json", b"{}")
    assert (tmp_path / "store/delaymq/clients.json").read_bytes() == b"{}"
