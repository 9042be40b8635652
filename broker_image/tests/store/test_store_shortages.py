"""Shortages of descriptors, memory and memory maps: nothing is lost, and operation resumes afterwards."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from delaymq.store.disk.files import Files
from delaymq.store.errors import SegmentCreateError, StoreFailedError, StoreFullError, StoreOpenError
from delaymq.store.index.index_file import IndexFile
from delaymq.store.message_store import MessageStore
from delaymq_testing.store.small_stores import SMALL, Watcher, entries_of, flush, message, snapshot

Open = Callable[..., MessageStore]


def refusal(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Short(Files):
    """Refuses calls of one kind with an error, as long as it is set."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {}
        self.folder_syncs: list[str] = []

    def _may(self, call: str) -> None:
        if call in self.refused:
            raise refusal(self.refused[call])

    def open(self, path: str, *, create: bool = False) -> int:
        self._may("create" if create else "open")
        return super().open(path, create=create)

    def read(self, path: str) -> bytes | None:
        self._may("read")
        return super().read(path)

    def allocate(self, descriptor: int, file_bytes: int) -> None:
        self._may("allocate")
        super().allocate(descriptor, file_bytes)

    def map(self, descriptor: int, file_bytes: int) -> mmap.mmap:
        self._may("map")
        return super().map(descriptor, file_bytes)

    def rename(self, source: str, target: str) -> None:
        self._may("rename")
        super().rename(source, target)

    def sync_folder(self, path: str) -> None:
        self._may("sync_folder")
        self.folder_syncs.append(path)
        super().sync_folder(path)

    def fdatasync(self, descriptor: int) -> None:
        self._may("fdatasync")
        super().fdatasync(descriptor)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("snapshot_first", [False, True])
def test_flush_without_a_descriptor_is_retried_without_failing_the_disk(
    number: int, snapshot_first: bool, open_store: Open, tmp_path: Path
) -> None:
    files = Short()
    store = open_store(files=files)
    store.append(message("a"))
    files.refused = {"sync_folder": number}
    task = store.snapshot_task(force=True) if snapshot_first else store.flush_task()
    assert task is not None
    task.run()
    assert task.finish() is not None
    assert store.failure is None
    assert store.flushed_offset == 0
    store.append(message("b"))
    files.refused.clear()
    files.folder_syncs.clear()
    flush(store)
    assert store.flushed_offset == store.end_offset
    assert f"{tmp_path}/store/commitlog" in files.folder_syncs


def test_flush_opens_no_files(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    store.append(message("a"))

    def no_descriptor(*arguments: object, **keywords: object) -> int:
        raise refusal(errno.EMFILE)

    monkeypatch.setattr("os.open", no_descriptor)
    flush(store)
    monkeypatch.undo()
    assert store.flushed_offset == store.end_offset


def test_data_of_a_sync_without_memory_counts_as_lost(open_store: Open) -> None:
    files = Short()
    store = open_store(files=files)
    store.append(message("a"))
    files.refused = {"fdatasync": errno.ENOMEM}
    task = store.flush_task()
    assert task is not None
    task.run()
    task.finish()
    assert isinstance(store.failure, StoreFailedError)
    files.refused.clear()


@pytest.mark.parametrize(
    ("call", "number", "error", "text"),
    [
        ("map", errno.ENOMEM, SegmentCreateError, "max_map_count"),
        ("create", errno.EMFILE, SegmentCreateError, "ulimit -n"),
        ("create", errno.ENOSPC, StoreFullError, "df -i"),
        ("sync_folder", errno.EMFILE, SegmentCreateError, "ulimit -n"),
        ("rename", errno.ENOSPC, StoreFullError, "df -i"),
        ("rename", errno.ENOMEM, SegmentCreateError, "max_map_count"),
    ],
)
def test_failed_segment_creation_changes_nothing_until_it_succeeds(
    call: str, number: int, error: type[Exception], text: str, open_store: Open
) -> None:
    files = Short()
    store = open_store(files=files)
    kept = [store.append(message(str(n), body=bytes(2_000))).physical_offset for n in range(7)]
    end = store.end_offset
    files.refused = {call: number}
    for attempt in range(3):
        with pytest.raises(error, match=text):
            store.append(message("refused", body=bytes(4_000)))
        if attempt == 0:
            open_files = os.listdir("/proc/self/fd")
    assert os.listdir("/proc/self/fd") == open_files
    assert store.end_offset == end
    assert store.failure is None
    kept.append(store.append(message("small")).physical_offset)
    files.refused.clear()
    kept.append(store.append(message("next segment", body=bytes(4_000))).physical_offset)
    flush(store)
    store.close()
    assert [entry[0] for entry in entries_of(open_store(), "Orders", 0)] == kept


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_segment_whose_name_was_not_durable_fails_the_store(number: int, open_store: Open) -> None:
    files = Short()
    store = open_store(files=files)
    kept = [store.append(message(str(n), body=bytes(2_000))).physical_offset for n in range(7)]
    flush(store)
    files.refused = {"sync_folder": number}
    with pytest.raises(StoreFailedError, match="the disk failed to store the log"):
        store.append(message("refused", body=bytes(4_000)))
    files.refused.clear()
    with pytest.raises(StoreFailedError):
        store.append(message("refused too", body=bytes(4_000)))
    with pytest.raises(StoreFailedError):
        store.append(message("small"))
    store.close()
    assert [entry[0] for entry in entries_of(open_store(), "Orders", 0)] == kept


def test_preallocated_segment_that_cannot_be_renamed_releases_its_file(open_store: Open) -> None:
    files = Short()
    store = open_store(files=files)
    store.append(message("a"))
    open_files = os.listdir("/proc/self/fd")
    files.refused = {"rename": errno.ENOSPC}
    for _ in range(2):
        task = store.allocation_task()
        assert task is not None
        task.run()
        failure = task.finish()
        assert failure is not None
        assert failure.errno == errno.ENOSPC
        assert os.listdir("/proc/self/fd") == open_files
    files.refused.clear()
    task = store.allocation_task()
    assert task is not None
    task.run()
    assert task.finish() is None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_table_unreadable_for_a_shortage_does_not_count_as_empty(number: int, open_store: Open) -> None:
    files = Short()
    store = open_store(files=files)
    for content in (b"1", b"2"):
        store.config_files.save("consumerOffset.json", content)
    files.refused = {"read": number}
    with pytest.raises(StoreOpenError, match=r"consumerOffset.json cannot be opened .*ulimit -n"):
        store.config_files.load("consumerOffset.json", int)
    files.refused.clear()
    assert store.config_files.load("consumerOffset.json", int) == 2
    assert store.recovery.corrections == []


def test_index_without_memory_does_not_hide_records_from_observers(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher()
    store = open_store(observers=(watcher,))
    snapshot(store)

    def no_memory(file: IndexFile, *, from_file: bool) -> None:
        raise refusal(errno.ENOMEM)

    monkeypatch.setattr(IndexFile, "load_slots", no_memory)
    offset = store.append(message("a", topic="Watched", KEYS="k")).physical_offset
    assert watcher.offsets == [offset]
    assert store.query_index("Watched", "k", 10, 0, 1 << 62) == []
    assert store.snapshot_task(force=True) is None
    store.close()
    monkeypatch.undo()
    again = open_store(observers=(Watcher(),))
    assert again.query_index("Watched", "k", 10, 0, 1 << 62) == [offset]


@pytest.mark.parametrize(
    ("number", "text"),
    [(errno.EMFILE, "ulimit -n"), (errno.EROFS, "readOnly=true"), (errno.ENOSPC, "free space"), (errno.EIO, "disk")],
)
@pytest.mark.parametrize("call", ["open", "create"])
def test_store_whose_files_cannot_be_opened_is_rejected_clearly(
    call: str, number: int, text: str, open_store: Open
) -> None:
    store = open_store()
    store.append(message("a"))
    store.close()
    files = Short()
    files.refused = {call: number}
    with pytest.raises(StoreOpenError, match=f"cannot be opened .*{text}"):
        open_store(files=files)
    open_store()


def sparse_copy(source: Path, target: Path) -> None:
    """As `cp --sparse=always`: blocks of zeroes become holes."""
    data = source.read_bytes()
    with target.open("wb") as file:
        file.truncate(len(data))
        for at in range(0, len(data), 4_096):
            if data[at : at + 4_096].strip(b"\0"):
                file.seek(at)
                file.write(data[at : at + 4_096])


def test_sparse_copy_of_the_log_is_allocated_at_start_or_rejected(open_store: Open, tmp_path: Path) -> None:
    options = replace(SMALL, commit_log_file_bytes=1 << 20)
    store = open_store(options=options)
    store.append(message("a"))
    task = store.allocation_task()
    assert task is not None
    task.run()
    assert task.finish() is None
    store.close()
    segments = sorted((tmp_path / "store/commitlog").iterdir())
    for segment in segments:
        copy = segment.with_suffix(".copy")
        sparse_copy(segment, copy)
        copy.rename(segment)
    files = Short()
    files.refused = {"allocate": errno.ENOSPC}
    with pytest.raises(StoreFullError, match="is sparse and the disk has no space"):
        open_store(options=options, files=files)
    open_store(options=options)
    assert len(segments) == 2
    assert all(segment.stat().st_blocks * 512 >= 1 << 20 for segment in segments)


def test_snapshot_without_memory_is_repeated(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(observers=[watcher := Watcher("Orders")])
    store.append(message("a"))
    task = store.snapshot_task(force=True)
    assert task is not None

    def fail(*arguments: object, **keywords: object) -> str:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("delaymq.store.snapshot.snapshot.json.dumps", fail)
        task.run()
    error = task.finish()
    assert error is not None
    assert error.errno == errno.ENOMEM
    snapshot(store)
    store.abandon()
    again = Watcher("Orders")
    assert open_store(observers=[again]).recovery.snapshot_used
    assert again.restored_from == watcher.offsets
