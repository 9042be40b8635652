"""Backups and restored stores state the format version that their log requires."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from delaymq.store.backup.backup import Backup, BackupResult
from delaymq.store.backup.manifest import encode_manifest
from delaymq.store.backup.restore import Restore
from delaymq.store.backup.source import FolderSource, SourceState
from delaymq.store.disk.files import Files
from delaymq.store.errors import BackupError
from delaymq.store.layout import FORMAT_VERSION
from delaymq.store.message_store import MessageStore
from delaymq_testing.store.small_stores import flush, message
from delaymq_testing.store.timed_records import TimedStore

Open = Callable[..., MessageStore]


def fill(store: MessageStore, count: int) -> None:
    for number in range(count):
        store.append(message(f"u{number}", body=bytes([number]) * 900))
    flush(store)


def back_up(source: Path | FolderSource, folder: Path) -> BackupResult:
    opened = source if isinstance(source, FolderSource) else FolderSource(str(source))
    try:
        return Backup(opened, str(folder), program="t", now_ms=lambda: 1_700_000_000_000).run()
    finally:
        opened.close()


def test_newer_backup_is_left_unchanged(open_store: Open, tmp_path: Path) -> None:
    fill(open_store(), 5)
    result = back_up(tmp_path / "store", tmp_path / "backup")
    path = tmp_path / "backup/manifest.json"
    path.write_bytes(encode_manifest(replace(result.manifest, minimum_reader=FORMAT_VERSION + 1)))
    with pytest.raises(
        BackupError, match=f"reads format version {FORMAT_VERSION + 1}, but this one reads {FORMAT_VERSION}"
    ):
        Restore(str(tmp_path / "backup"), str(tmp_path / "again"))
    there = path.read_bytes()
    with pytest.raises(
        BackupError, match=f"reads format version {FORMAT_VERSION + 1}, but this one reads {FORMAT_VERSION}"
    ):
        back_up(tmp_path / "store", tmp_path / "backup")
    assert path.read_bytes() == there


def versions(path: Path) -> tuple[int, int]:
    content = json.loads(path.read_bytes())
    return content["formatVersion"], content["minimumReader"]


@pytest.mark.parametrize(("is_timed", "version"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("new_store_id", [False, True])
def test_backup_and_restored_store_require_what_the_store_requires(
    open_store: Open, tmp_path: Path, is_timed: bool, version: int, new_store_id: bool
) -> None:
    store = open_store()
    fill(store, 5)
    if is_timed:
        TimedStore(store).schedule("u", 1_700_000_100_000)
    flush(store)
    back_up(tmp_path / "store", tmp_path / "backup")
    assert versions(tmp_path / "backup/manifest.json") == (version, version)

    required: list[tuple[int, int]] = []

    class Watched(Files):
        def open(self, path: str, *, create: bool = False) -> int:
            if "/commitlog/" in path:
                required.append(versions(tmp_path / "again/delaymq/state.json"))
            return super().open(path, create=create)

    work = Restore(str(tmp_path / "backup"), str(tmp_path / "again"), new_store_id=new_store_id, files=Watched())
    work.lay_out()
    work.finish()
    assert set(required) == {(version, version)}, "stated before the first byte of the log"
    opened = open_store(tmp_path / "again")
    assert opened.format_version == version
    opened.close()
    assert versions(tmp_path / "again/delaymq/state.json") == (version, version)


def test_version_raised_during_a_backup_is_included(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 5)
    assert back_up(tmp_path / "store", tmp_path / "backup").manifest.minimum_reader == 1

    class Late(FolderSource):
        """A broker stores the first timed message between the first read and that of the log's end."""

        def _log_end(self, log_start: int) -> int:
            TimedStore(store).schedule("late", 1_700_000_100_000)
            flush(store)
            return super()._log_end(log_start)

    result = back_up(Late(str(tmp_path / "store")), tmp_path / "backup")
    assert (result.manifest.minimum_reader, result.manifest.end_offset) == (2, store.end_offset)


def test_backup_of_a_store_with_damaged_state_requires_the_newest_known_version(
    open_store: Open, tmp_path: Path
) -> None:
    store = open_store()
    fill(store, 5)
    store.close()
    (tmp_path / "store/delaymq/state.json").write_bytes(b"{")
    assert back_up(tmp_path / "store", tmp_path / "backup").manifest.minimum_reader == FORMAT_VERSION


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, 1 << 70])
def test_source_that_requires_an_unknown_version_is_rejected(open_store: Open, tmp_path: Path, version: int) -> None:
    fill(open_store(), 5)

    class Other(FolderSource):
        def state(self) -> SourceState:
            return replace(super().state(), minimum_reader=version)

    with pytest.raises(
        BackupError, match=f"reads format version {version}, but this one reads 1 to {FORMAT_VERSION}: use the version"
    ):
        back_up(Other(str(tmp_path / "store")), tmp_path / "backup")
