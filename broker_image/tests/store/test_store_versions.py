"""Compatibility of programs and store versions: the rules of state.json."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from delaymq.store.disk.files import Files
from delaymq.store.errors import NotAStoreError, StoreError
from delaymq.store.message_store import MessageStore

Open = Callable[..., MessageStore]


class RecordingFiles(Files):
    """Records writes, renames and syncs of folders, and fails writes with `error`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.error: OSError | None = None

    def write(self, path: str, *parts: bytes) -> None:
        if self.error is not None:
            raise self.error
        super().write(path, *parts)
        self.calls.append(("write", path))

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.calls.append(("rename", target))

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.calls.append(("sync_folder", path))


def state_of(tmp_path: Path) -> dict[str, object]:
    state: dict[str, object] = json.loads((tmp_path / "store/delaymq/state.json").read_bytes())
    return state


def change(tmp_path: Path, **members: object) -> None:
    path = tmp_path / "store/delaymq/state.json"
    content = state_of(tmp_path) | members
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def test_store_states_its_version_and_the_required_one(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    assert state_of(tmp_path) == {
        "formatVersion": 1, "minimumReader": 1, "epoch": 0, "role": "master", "storeId": store.store_id,
    }  # fmt: skip


@pytest.mark.parametrize("minimum", [None, 5])
def test_newer_store_is_rejected_unchanged(open_store: Open, tmp_path: Path, minimum: int | None) -> None:
    open_store().close()
    change(tmp_path, formatVersion=5, minimumReader=minimum)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    with pytest.raises(NotAStoreError, match="this program has format version 4: use the version that wrote the store"):
        open_store()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")} == before


def test_compatible_newer_store_is_opened_and_keeps_its_version(open_store: Open, tmp_path: Path) -> None:
    open_store().close()
    change(tmp_path, formatVersion=3, minimumReader=1)
    open_store().close()
    assert (state_of(tmp_path)["formatVersion"], state_of(tmp_path)["minimumReader"]) == (3, 1)


def test_version_is_raised_on_request_and_not_by_opening(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    store.close()
    change(tmp_path, minimumReader=None)
    store = open_store()
    assert (store.format_version, state_of(tmp_path)["formatVersion"]) == (1, 1)
    store.raise_format_version(2)
    raised = {**state_of(tmp_path)}
    assert (raised["formatVersion"], raised["minimumReader"], raised["storeId"]) == (2, 2, store.store_id)
    store.raise_format_version(2)
    store.close()
    store = open_store()
    assert store.format_version == 2
    store.raise_format_version(3)
    store.raise_format_version(2)
    store.close()
    assert (state_of(tmp_path)["formatVersion"], state_of(tmp_path)["minimumReader"]) == (3, 3)


def test_version_is_synced_before_the_first_statement(open_store: Open, tmp_path: Path) -> None:
    files = RecordingFiles()
    store = open_store(files=files)
    files.calls.clear()
    store.raise_format_version(2)
    assert [name for name, path in files.calls if "delaymq" in path] == ["write", "rename", "sync_folder"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE, errno.EIO])
def test_version_that_cannot_be_written_is_reported(open_store: Open, error: int) -> None:
    files = RecordingFiles()
    store = open_store(files=files)
    files.error = OSError(error, os.strerror(error))
    with pytest.raises(StoreError, match=r"state\.json cannot be written"):
        store.raise_format_version(2)
    assert store.format_version == 1


def test_incomplete_store_of_a_tool_is_not_opened(open_store: Open, tmp_path: Path) -> None:
    open_store().close()
    change(tmp_path, unfinished="an unfinished restore")
    with pytest.raises(NotAStoreError, match="an unfinished restore: run it again"):
        open_store()
