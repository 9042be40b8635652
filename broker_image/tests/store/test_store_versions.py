"""Compatibility of programs and store versions: the rules of state.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from delaymq.store import layout
from delaymq.store.errors import NotAStoreError
from delaymq.store.message_store import MessageStore

Open = Callable[..., MessageStore]


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


@pytest.mark.parametrize("minimum", [None, 2])
def test_newer_store_is_rejected_unchanged(open_store: Open, tmp_path: Path, minimum: int | None) -> None:
    open_store().close()
    change(tmp_path, formatVersion=2, minimumReader=minimum)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    with pytest.raises(NotAStoreError, match="this program has format version 1: use the version that wrote the store"):
        open_store()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")} == before


def test_compatible_newer_store_is_opened_and_keeps_its_version(open_store: Open, tmp_path: Path) -> None:
    open_store().close()
    change(tmp_path, formatVersion=2, minimumReader=1)
    open_store().close()
    assert (state_of(tmp_path)["formatVersion"], state_of(tmp_path)["minimumReader"]) == (2, 1)


def test_older_store_is_marked_before_a_newer_program_writes(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_store()
    first.close()
    change(tmp_path, minimumReader=None)
    monkeypatch.setattr(layout, "FORMAT_VERSION", 3)
    monkeypatch.setattr(layout, "MINIMUM_READER", 2)
    assert open_store().store_id == first.store_id
    assert (state_of(tmp_path)["formatVersion"], state_of(tmp_path)["minimumReader"]) == (3, 2)


def test_incomplete_store_of_a_tool_is_not_opened(open_store: Open, tmp_path: Path) -> None:
    open_store().close()
    change(tmp_path, unfinished="an unfinished restore")
    with pytest.raises(NotAStoreError, match="an unfinished restore: run it again"):
        open_store()
