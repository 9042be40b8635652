"""Truncated queue files: their entries are rebuilt, wherever in the queue they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from delaymq.store.message_store import MessageStore
from delaymq_testing.store.small_stores import entries_of, message, snapshot

Open = Callable[..., MessageStore]


@pytest.mark.parametrize("file", [0, 1, 3, 4])
@pytest.mark.parametrize("keep_bytes", [0, 60, 399])
@pytest.mark.parametrize(("stop", "has_snapshot"), [("clean", True), ("clean", False), ("killed", True)])
def test_all_entries_of_a_truncated_queue_file_are_rebuilt(
    open_store: Open, tmp_path: Path, file: int, keep_bytes: int, stop: str, has_snapshot: bool
) -> None:
    store = open_store()
    for number in range(90):
        store.append(message(f"u{number}"))
    snapshot(store)
    for number in range(5):
        store.append(message(f"v{number}"))
    expected = entries_of(store, "Orders", 0, 0)
    while store.write_behind():
        pass
    if stop == "clean":
        store.close()
    else:
        store.abandon()
    if not has_snapshot:
        (tmp_path / "store/delaymq/snapshot.json").unlink()
    with sorted((tmp_path / "store/consumequeue/Orders/0").iterdir())[file].open("r+b") as cut:
        cut.truncate(keep_bytes)
    store = open_store()
    assert entries_of(store, "Orders", 0, 0) == expected


def test_empty_file_behind_the_end_invalidates_no_snapshot(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    for number in range(20):
        store.append(message(f"u{number}"))
    snapshot(store)
    store.abandon()
    (tmp_path / "store/consumequeue/Orders/0" / f"{400:020d}").touch()
    store = open_store()
    assert store.recovery.snapshot_used
    assert store.queue_bounds("Orders", 0) == (0, 20)
