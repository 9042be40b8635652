"""A store is backed up while it changes, and restored completely and exactly."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from delaymq.message.levels import DelayLevels
from delaymq.store.backup.backup import QUEUES, Backup, BackupResult
from delaymq.store.backup.check import check_backup
from delaymq.store.backup.manifest import Copied, encode_manifest, read_manifest
from delaymq.store.backup.restore import Restore
from delaymq.store.backup.source import FolderSource, SourceState
from delaymq.store.disk.files import Files
from delaymq.store.errors import BackupError, NotAStoreError
from delaymq.store.message_store import MessageStore
from delaymq.store.reader import StoreReader
from delaymq_testing.store.small_stores import Clock, entries_of, flush, message, snapshot

Open = Callable[..., MessageStore]
SEGMENT_BYTES = 16_384
HOUR_MS = 3_600_000


def fill(store: MessageStore, count: int, topic: str = "Orders", prefix: str = "u") -> None:
    for number in range(count):
        store.append(message(f"{prefix}{number}", topic=topic, queue_id=number % 3, body=bytes([number % 251]) * 900))
    flush(store)


def back_up(
    source: Path | FolderSource, folder: Path, files: Files | None = None, bytes_per_s: int | None = None
) -> BackupResult:
    opened = source if isinstance(source, FolderSource) else FolderSource(str(source))
    try:
        return Backup(
            opened, str(folder), program="t", now_ms=lambda: 1_700_000_000_000, files=files, bytes_per_s=bytes_per_s
        ).run()
    finally:
        opened.close()


def restored(backup: Path, target: Path, **keywords: object) -> Path:
    work = Restore(str(backup), str(target), **keywords)  # type: ignore[arg-type]
    work.lay_out()
    work.finish()
    return target


def log_of(path: Path, end: int) -> list[tuple[int, bytes]]:
    return [
        (each.physical_offset, each.encoded()) for each in StoreReader(path).records() if each.physical_offset < end
    ]


def test_running_brokers_data_is_restored_up_to_the_named_offset(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    store.config_files.save("consumerOffset.json", b'{"offsetTable":{}}')
    fill(store, 100)
    snapshot(store)
    fill(store, 20, prefix="late")
    result = back_up(tmp_path / "store", tmp_path / "backup")
    assert result.manifest.end_offset == store.end_offset
    fill(store, 30, prefix="after")

    again = open_store(restored(tmp_path / "backup", tmp_path / "again"))
    end = result.manifest.end_offset
    assert again.end_offset == end
    assert again.store_id == store.store_id
    assert log_of(tmp_path / "again", end) == log_of(tmp_path / "store", end)
    assert again.config_files.load("consumerOffset.json", json.loads) == {"offsetTable": {}}
    for queue_id in range(3):
        expected = [entry for entry in entries_of(store, "Orders", queue_id) if entry[0] < end]
        assert entries_of(again, "Orders", queue_id) == expected
    assert again.query_index("Orders", "late7", 8, 0, 1 << 60)
    assert not again.query_index("Orders", "after7", 8, 0, 1 << 60)


def test_second_backup_copies_new_data_and_touches_no_complete_segment(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 50)
    first = back_up(tmp_path / "store", tmp_path / "backup")
    complete = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "backup/commitlog").iterdir())[:-1]}
    assert len(complete) >= 2
    fill(store, 50, prefix="v")
    second = back_up(tmp_path / "store", tmp_path / "backup")
    assert second.copied_bytes == second.manifest.end_offset - first.manifest.end_offset
    assert second.kept_segments == len(complete)
    assert {path: path.stat().st_mtime_ns for path in complete} == complete
    assert check_backup(str(tmp_path / "backup")).exit_code == 0
    assert back_up(tmp_path / "store", tmp_path / "backup").copied_bytes == 0


def test_hard_linked_copy_stays_independent(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 50)
    first = back_up(tmp_path / "store", tmp_path / "backup")
    shutil.copytree(tmp_path / "backup", tmp_path / "monday", copy_function=os.link)
    fill(store, 30, prefix="v")
    back_up(tmp_path / "store", tmp_path / "backup")
    last = max((tmp_path / "backup/commitlog").iterdir())
    last.rename(tmp_path / "moved")
    back_up(tmp_path / "store", tmp_path / "backup")
    assert check_backup(str(tmp_path / "monday")).exit_code == 0
    again = open_store(restored(tmp_path / "monday", tmp_path / "again"))
    assert again.end_offset == first.manifest.end_offset


class Breaking(FolderSource):
    """A source that disappears after `reads` reads."""

    def __init__(self, path: Path, reads: int) -> None:
        super().__init__(str(path))
        self.reads = reads

    def read(self, base: int, position: int, count: int) -> bytes:
        self.reads -= 1
        if self.reads < 0:
            raise BackupError("the source is gone")
        return super().read(base, position, count)


def test_interrupted_backup_keeps_the_previous_one_and_can_resume(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 40)
    first = back_up(tmp_path / "store", tmp_path / "backup")
    fill(store, 100, prefix="v")
    with pytest.raises(BackupError, match="the source is gone"):
        back_up(Breaking(tmp_path / "store", reads=7), tmp_path / "backup")
    assert check_backup(str(tmp_path / "backup")).exit_code == 0
    assert read_manifest(Files(), str(tmp_path / "backup")) == first.manifest
    old = open_store(restored(tmp_path / "backup", tmp_path / "old"))
    assert old.end_offset == first.manifest.end_offset

    second = back_up(tmp_path / "store", tmp_path / "backup")
    assert 0 < second.copied_bytes < second.manifest.end_offset - first.manifest.end_offset
    assert open_store(restored(tmp_path / "backup", tmp_path / "new")).end_offset == store.end_offset


def test_verify_names_a_damaged_file_and_restore_stops(open_store: Open, tmp_path: Path) -> None:
    fill(open_store(), 60)
    back_up(tmp_path / "store", tmp_path / "backup")
    segment = sorted((tmp_path / "backup/commitlog").iterdir())[1]
    data = bytearray(segment.read_bytes())
    data[777] ^= 1
    segment.write_bytes(data)
    check = check_backup(str(tmp_path / "backup"))
    assert check.exit_code == 1
    assert [finding.file for finding in check.damage] == [f"commitlog/{segment.name}"]
    with pytest.raises(BackupError, match=segment.name):
        restored(tmp_path / "backup", tmp_path / "again")
    with pytest.raises(NotAStoreError, match="unfinished restore"):
        open_store(tmp_path / "again")
    segment.unlink()
    assert "missing" in check_backup(str(tmp_path / "backup")).damage[0].detail
    assert back_up(tmp_path / "store", tmp_path / "backup").copied_bytes == SEGMENT_BYTES
    assert check_backup(str(tmp_path / "backup")).exit_code == 0
    restored(tmp_path / "backup", tmp_path / "again")  # a restore that did not end may be run again


def test_damaged_manifest_is_reported_and_repaired_by_the_next_backup(open_store: Open, tmp_path: Path) -> None:
    fill(open_store(), 30)
    back_up(tmp_path / "store", tmp_path / "backup")
    manifest = tmp_path / "backup/manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"startedMs", b"startedMS"))
    assert check_backup(str(tmp_path / "backup")).exit_code == 1
    with pytest.raises(BackupError, match="checksum"):
        Restore(str(tmp_path / "backup"), str(tmp_path / "again"))
    back_up(tmp_path / "store", tmp_path / "backup")
    assert check_backup(str(tmp_path / "backup")).exit_code == 0


class SmallDisk(Files):
    """A disk that takes `room` bytes and no more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        super().pwrite(descriptor, data, position)


def test_full_disk_keeps_copied_data_and_the_next_run_resumes(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 100)
    with pytest.raises(OSError, match="No space"):
        back_up(tmp_path / "store", tmp_path / "backup", SmallDisk(50_000))
    assert check_backup(str(tmp_path / "backup")).exit_code == 2
    with pytest.raises(BackupError, match="no finished backup"):
        Restore(str(tmp_path / "backup"), str(tmp_path / "again"))
    result = back_up(tmp_path / "store", tmp_path / "backup")
    assert result.copied_bytes < store.end_offset
    assert check_backup(str(tmp_path / "backup")).exit_code == 0


def test_concurrent_retention_moves_the_beginning_and_the_end(open_store: Open, clock: Clock, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 100)
    end_before = store.end_offset

    class Deleted(FolderSource):
        def read(self, base: int, position: int, count: int) -> bytes:
            if base == 2 * SEGMENT_BYTES and store.min_offset == 0:
                clock.ms += 100 * HOUR_MS
                fill(store, 10, prefix="handed over meanwhile")
                for path in sorted((tmp_path / "store/commitlog").iterdir())[:4]:
                    os.utime(path, (0, 0))
                store.clean(clock.ms, at_any_hour=True)
            return super().read(base, position, count)

    clock.ms = int(Path(tmp_path / "store").stat().st_mtime * 1000)
    result = back_up(Deleted(str(tmp_path / "store")), tmp_path / "backup")
    assert result.manifest.start_offset == store.min_offset > 0
    # What was pending in them may have been handed over since: the backup reaches behind that.
    assert result.manifest.end_offset == store.end_offset > end_before
    again = open_store(restored(tmp_path / "backup", tmp_path / "again"))
    assert (again.min_offset, again.end_offset) == (store.min_offset, store.end_offset)
    assert sorted(each.name for each in (tmp_path / "backup/commitlog").iterdir()) == list(result.manifest.segments)


def test_empty_queues_keep_their_offsets(open_store: Open, clock: Clock, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 47, topic="Gone")
    fill(store, 60)
    snapshot(store)
    for path in sorted((tmp_path / "store/commitlog").iterdir())[:4]:
        os.utime(path, (0, 0))
    clock.ms = 1_700_000_000_000
    store.clean(clock.ms, at_any_hour=True)
    bounds = [store.queue_bounds("Gone", queue_id) for queue_id in range(3)]
    assert [first for first, _ in bounds] == [end for _, end in bounds] == [16, 16, 15]
    back_up(tmp_path / "store", tmp_path / "backup")
    again = open_store(restored(tmp_path / "backup", tmp_path / "again"))
    assert [again.queue_bounds("Gone", queue_id) for queue_id in range(3)] == bounds
    assert again.append(message("next", topic="Gone")).queue_offset == 16
    assert again.queue_bounds("Orders", 0) == store.queue_bounds("Orders", 0)


def test_diverged_log_is_copied_from_the_divergence(open_store: Open, clock: Clock, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 40)
    back_up(tmp_path / "store", tmp_path / "other")
    fill(store, 30, prefix="lost with the power")
    back_up(tmp_path / "store", tmp_path / "backup")
    store.abandon()
    clock.ms += 1_000
    store = open_store(restored(tmp_path / "other", tmp_path / "cut"))
    fill(store, 60, prefix="written since")
    result = back_up(tmp_path / "cut", tmp_path / "backup")
    assert result.renewed
    assert result.kept_segments >= 2
    assert check_backup(str(tmp_path / "backup")).exit_code == 0
    restored(tmp_path / "backup", tmp_path / "again")
    assert log_of(tmp_path / "again", store.end_offset) == log_of(tmp_path / "cut", store.end_offset)


def test_concurrent_restores_into_one_folder_are_rejected(open_store: Open, tmp_path: Path) -> None:
    fill(open_store(), 5)
    back_up(tmp_path / "store", tmp_path / "backup")
    first = Restore(str(tmp_path / "backup"), str(tmp_path / "again"))
    first.lay_out()
    with pytest.raises(BackupError, match=r"another restore or a broker is using"):
        Restore(str(tmp_path / "backup"), str(tmp_path / "again")).lay_out()
    first.finish()
    assert open_store(tmp_path / "again").end_offset > 0


def test_interrupted_restore_leaves_nothing_in_another_backups_restore(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 5)
    store.own_files.save("delivery.json", b"{}")
    back_up(tmp_path / "store", tmp_path / "backup")
    fill(open_store(tmp_path / "other"), 5)
    back_up(tmp_path / "other", tmp_path / "second")

    class Full(Files):
        def sync_folder(self, path: str) -> None:
            if path.endswith("config"):
                raise OSError(errno.ENOSPC, "full")
            super().sync_folder(path)

    with pytest.raises(OSError, match="full"):
        Restore(str(tmp_path / "backup"), str(tmp_path / "again"), files=Full()).lay_out()
    (tmp_path / "again/consumequeue/Gone/0").mkdir(parents=True)
    restored(tmp_path / "second", tmp_path / "again")
    names = sorted(path.name for path in (tmp_path / "again/delaymq").iterdir())
    assert names == ["restored.json", "state.json"]
    assert list((tmp_path / "again/consumequeue").iterdir()) == []


def test_foreign_folder_is_left_unchanged(open_store: Open, tmp_path: Path) -> None:
    fill(open_store(), 5)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/letter.txt").write_text("mine")
    with pytest.raises(BackupError, match=r"other files \(letter.txt\)"):
        back_up(tmp_path / "store", tmp_path / "other")
    with pytest.raises(BackupError, match="is a store"):
        back_up(tmp_path / "store", tmp_path / "store")
    with pytest.raises(BackupError, match="not a folder"):
        back_up(tmp_path / "store", tmp_path / "other/letter.txt")
    back_up(tmp_path / "store", tmp_path / "backup")
    with pytest.raises(BackupError, match="not empty"):
        restored(tmp_path / "backup", tmp_path / "other")
    with pytest.raises(BackupError, match="not empty"):
        restored(tmp_path / "backup", tmp_path / "store")


def test_another_stores_backup_is_not_overwritten(open_store: Open, tmp_path: Path) -> None:
    fill(open_store(), 5)
    fill(open_store(tmp_path / "second"), 5)
    back_up(tmp_path / "store", tmp_path / "backup")
    with pytest.raises(BackupError, match="another store"):
        back_up(tmp_path / "second", tmp_path / "backup")


def test_concurrent_backups_into_one_folder_are_rejected(open_store: Open, tmp_path: Path) -> None:
    fill(open_store(), 5)

    class Taken(Files):
        def try_lock(self, descriptor: int) -> bool:
            return False

    with pytest.raises(BackupError, match="is running"):
        back_up(tmp_path / "store", tmp_path / "backup", Taken())


def test_empty_store_and_rocketmqs_store_can_be_backed_up(open_store: Open, golden: Path, tmp_path: Path) -> None:
    open_store()
    empty = back_up(tmp_path / "store", tmp_path / "empty")
    assert (empty.manifest.start_offset, empty.manifest.end_offset, empty.manifest.segments) == (0, 0, {})
    assert open_store(restored(tmp_path / "empty", tmp_path / "again")).end_offset == 0

    root = next(path.parent for path in golden.rglob("commitlog"))
    result = back_up(root, tmp_path / "backup")
    again = open_store(restored(tmp_path / "backup", tmp_path / "ours"))
    assert log_of(tmp_path / "ours", result.manifest.end_offset) == log_of(root, result.manifest.end_offset)
    assert again.end_offset == result.manifest.end_offset
    original = open_store(root)
    assert {queue: original.queue_bounds(*queue) for queue in original.queues()} == {
        queue: again.queue_bounds(*queue) for queue in again.queues()
    }


def test_manifest_paths_stay_inside_the_folder(open_store: Open, tmp_path: Path) -> None:
    fill(open_store(), 5)
    manifest = back_up(tmp_path / "store", tmp_path / "backup").manifest
    for bad in (
        replace(manifest, tables="../elsewhere"),
        replace(manifest, small_files={"../state.json": next(iter(manifest.small_files.values()))}),
        replace(manifest, segments={"../../etc": next(iter(manifest.segments.values()))}),
    ):
        (tmp_path / "backup/manifest.json").write_bytes(encode_manifest(bad))
        with pytest.raises(BackupError, match="cannot be read"):
            Restore(str(tmp_path / "backup"), str(tmp_path / "again"))


@pytest.mark.parametrize(
    "lie",
    [
        {"small_files": {"config/../../../escaped": b"x"}},
        {"small_files": {"../escaped": b"x"}},
        {"small_files": {"commitlog/00000000000000000000": b"x"}},
        {"ended_queues": [("../../../escaped", 0, 7)]},
        {"ended_queues": [("Orders", -1, 7)]},
        {"ended_queues": [("Orders", 0, 1 << 62)]},
        {"end_offset": 1 << 62},
        {"start_offset": 1},
    ],
    ids=str,
)
def test_source_with_invalid_file_names_writes_nothing(
    open_store: Open, tmp_path: Path, lie: dict[str, object]
) -> None:
    fill(open_store(), 5)

    class Lying(FolderSource):
        def state(self) -> SourceState:
            return replace(super().state(), **lie)  # type: ignore[arg-type]

    with pytest.raises(BackupError):
        back_up(Lying(str(tmp_path / "store")), tmp_path / "deep" / "backup")
    assert sorted(path.name for path in tmp_path.rglob("*escaped*")) == []
    assert sorted(path.name for path in (tmp_path / "deep/backup").iterdir()) == ["commitlog", "lock"]


def test_malicious_backup_writes_nothing_outside_the_target(open_store: Open, tmp_path: Path) -> None:
    fill(open_store(), 5)
    manifest = back_up(tmp_path / "store", tmp_path / "backup").manifest
    queues = json.dumps([["../../../escaped", 0, 7]]).encode()
    (tmp_path / "backup" / manifest.tables / QUEUES).write_bytes(queues)
    copied = Copied(len(queues), sha256(queues).hexdigest())
    bad = replace(manifest, small_files=dict(manifest.small_files) | {QUEUES: copied})
    (tmp_path / "backup/manifest.json").write_bytes(encode_manifest(bad))
    with pytest.raises(BackupError, match="invalid source: queue"):
        restored(tmp_path / "backup", tmp_path / "deep" / "again")
    assert list(tmp_path.rglob("*escaped*")) == []


@pytest.mark.parametrize("sizes", [{"commit_log_file_bytes": 1 << 50}, {"index_slots": "many"}, {"index_entries": 0}])
def test_manifest_with_impossible_sizes_is_rejected(open_store: Open, tmp_path: Path, sizes: dict[str, Any]) -> None:
    fill(open_store(), 5)
    manifest = back_up(tmp_path / "store", tmp_path / "backup").manifest
    bad = replace(manifest, sizes=replace(manifest.sizes, **sizes))
    (tmp_path / "backup/manifest.json").write_bytes(encode_manifest(bad))
    with pytest.raises(BackupError, match="not a number from"):
        Restore(str(tmp_path / "backup"), str(tmp_path / "again"))


def test_manifest_with_an_endless_log_is_rejected_immediately(open_store: Open, tmp_path: Path) -> None:
    fill(open_store(), 5)
    manifest = back_up(tmp_path / "store", tmp_path / "backup").manifest
    (tmp_path / "backup/manifest.json").write_bytes(encode_manifest(replace(manifest, end_offset=1 << 62)))
    with pytest.raises(BackupError, match="do not reach"):
        Restore(str(tmp_path / "backup"), str(tmp_path / "again"))


def test_read_only_open_leaves_the_store_identical(open_store: Open, clock: Clock, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 80)
    snapshot(store)
    fill(store, 20, prefix="late")
    back_up(tmp_path / "store", tmp_path / "backup")
    expected = {queue: entries_of(store, *queue) for queue in store.queues()}
    end = store.end_offset
    store.abandon()
    with (tmp_path / "store/commitlog" / max(os.listdir(tmp_path / "store/commitlog"))).open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"torn")  # a start truncates this
    for path in (tmp_path / "store", tmp_path / "backup"):
        before = {each: (each.stat().st_mtime_ns, each.read_bytes()) for each in path.rglob("*") if each.is_file()}
        read_only = MessageStore.open_read_only(path, store.options, now_ms=clock, levels=DelayLevels.parse())
        try:
            assert read_only.end_offset == end
            assert {queue: entries_of(read_only, *queue) for queue in read_only.queues()} == expected
            assert read_only.query_index("Orders", "late7", 8, 0, 1 << 60)
            with pytest.raises(Exception, match="read-only"):
                read_only.append(message("no"))
        finally:
            read_only.close()
        assert {
            each: (each.stat().st_mtime_ns, each.read_bytes()) for each in path.rglob("*") if each.is_file()
        } == before
