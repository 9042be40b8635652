"""`delaymq store verify` takes time that grows with the log, not with its square. Calls are counted, not seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from delaymq.store.message_store import MessageStore
from delaymq.store.tools.verify import SOUND, verify
from delaymq_testing.store.small_stores import message

Open = Callable[..., MessageStore]


def looks_at_names(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many names the check of a store lists or looks up."""
    looks = 0
    listdir, stat = os.listdir, os.stat

    def counted_listdir(folder: str) -> list[str]:
        nonlocal looks
        found = listdir(folder)
        looks += len(found)
        return found

    def counted_stat(*arguments: object, **keywords: object) -> os.stat_result:
        nonlocal looks
        looks += 1
        return stat(*arguments, **keywords)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", counted_listdir)
        patched.setattr(os, "stat", counted_stat)
        result = verify(path)
    assert result.exit_code == SOUND
    assert result.index_entries >= result.records > 0
    return looks


def test_four_times_as_many_segments_take_about_four_times_as_long(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    looks: list[int] = []
    for segments in (4, 16):
        while len(list((tmp_path / "store/commitlog").iterdir())) < segments:
            store.append(message(f"u{store.end_offset}", body=bytes(1_000), KEYS="k"))
        store.write_behind(1_000)
        store.close()
        looks.append(looks_at_names(tmp_path / "store", monkeypatch))
        store = open_store()
    assert looks[1] < looks[0] * 6
