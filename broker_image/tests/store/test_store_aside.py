"""Data that a repair truncates, clears or overwrites is first copied to delaymq/aside/."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from delaymq.store.disk import aside
from delaymq.store.disk.files import Files
from delaymq.store.errors import StoreOpenError
from delaymq.store.message_store import MessageStore
from delaymq.store.tools.verify import SOUND, verify
from delaymq_testing.store.small_stores import kinds, message, snapshot

Open = Callable[..., MessageStore]


def test_tail_is_copied_aside_before_it_is_cleared(tmp_path: Path, open_store: Open) -> None:
    store = open_store()
    places = [store.append(message(f"u{each}", body=b"b" * 300)) for each in range(3)]
    end = store.end_offset
    store.abandon()
    path = tmp_path / "store/commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        for place in places[1:]:
            file.seek(place.physical_offset + 100)
            file.write(b"x")
    tail = path.read_bytes()[places[1].physical_offset : end]
    assert kinds(open_store())[-1] == "torn-tail"
    [kept] = (tmp_path / "store/delaymq/aside").glob("0*")
    assert kept.name == f"{places[1].physical_offset:020d}-{end:020d}"
    assert kept.read_bytes() == tail


def test_removed_segments_queues_and_index_files_are_moved_aside(stopped: Path, open_store: Open) -> None:
    segments = sorted((stopped / "commitlog").iterdir())
    for segment in segments[1:]:
        segment.write_bytes(b"\x55" * 16_384)
    contents = {path.name: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    queue = sorted((stopped / "consumequeue/Orders/1").iterdir())[0]
    index = sorted((stopped / "index").iterdir())[0]
    old_queue, old_index = queue.read_bytes(), index.read_bytes()
    (stopped / "abort").touch()
    store = open_store()
    assert "log-behind-end" in kinds(store)
    folder = stopped / "delaymq/aside"
    assert (folder / f"{16_384:020d}-{32_768:020d}").read_bytes() == contents[segments[1].name]
    for segment in segments[2:]:
        assert (folder / f"commitlog~{segment.name}").read_bytes() == contents[segment.name]
    assert (folder / f"consumequeue~Orders~1~{queue.name}").read_bytes() == old_queue
    assert (folder / f"index~{index.name}").read_bytes() == old_index
    store.close()
    assert verify(stopped).exit_code == SOUND


def test_entries_behind_a_snapshot_are_copied_aside_before_truncation(stopped: Path, open_store: Open) -> None:
    store = open_store()
    snapshot(store)
    for number in range(3):
        store.append(message(f"later{number}"))
    store.write_behind()
    store.abandon()
    queue = sorted((stopped / "consumequeue/Orders/0").iterdir())[-1]
    entries = queue.read_bytes()[7 * 20 : 10 * 20]
    open_store()
    pieces = (stopped / "delaymq/aside/pieces").read_bytes()
    about = f'{{"file":"consumequeue/Orders/0/{queue.name}","position":140,"bytes":'.encode()
    assert about in pieces
    assert pieces[pieces.index(b"\n", pieces.index(about)) + 1 :].startswith(entries.rstrip(b"\0"))


def test_size_of_data_moved_aside_is_bounded(stopped: Path, open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "MAX_BYTES", 40_960)
    monkeypatch.setattr(aside, "MAX_FILES", 5)
    last = sorted((stopped / "commitlog").iterdir())[-1]
    for number in range(12):
        (stopped / "abort").touch()
        with last.open("r+b") as file:
            file.seek(-300, 2)
            file.write(bytes([number + 1]) * 300)
        store = open_store()
        assert "torn-tail" in kinds(store)
        store.abandon()
        kept = list((stopped / "delaymq/aside").iterdir())
        assert sum(path.stat().st_blocks * 512 for path in kept) <= 40_960
        assert len([path for path in kept if path.name[0] in "0p"]) <= 5
    assert any(path.read_bytes().endswith(b"\x0c" * 300) for path in kept)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_nothing_is_cleared_while_copying_aside_fails(number: int, stopped: Path, open_store: Open) -> None:
    class Short(Files):
        def open(self, path: str, *, create: bool = False) -> int:
            if "/aside/" in path:
                raise OSError(number, os.strerror(number))
            return super().open(path, create=create)

    last = sorted((stopped / "commitlog").iterdir())[-1]
    (stopped / "abort").touch()
    with last.open("r+b") as file:
        file.seek(-300, 2)
        file.write(b"x" * 300)
    content = last.read_bytes()
    with pytest.raises(StoreOpenError, match="descriptors"):
        open_store(files=Short())
    assert last.read_bytes() == content
    assert "torn-tail" in kinds(open_store())
    kept = (stopped / "delaymq/aside").glob("0*")
    assert any(path.read_bytes().endswith(b"x" * 300) for path in kept)
