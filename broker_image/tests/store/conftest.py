"""Stores of small files, a clock that the test moves, golden stores unpacked."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from delaymq.message.levels import DelayLevels
from delaymq.store.message_store import MessageStore
from delaymq_testing.store.small_stores import GOLDEN, SMALL, Clock, message


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_store(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., MessageStore]]:
    """Opens the store in `tmp_path`/store, with the given options and observers; closes all at the end."""
    opened: list[MessageStore] = []

    def open_one(path: Path | None = None, **keywords: object) -> MessageStore:
        settings: dict[str, object] = {"now_ms": clock, "levels": DelayLevels.parse(), **keywords}
        options = settings.pop("options", SMALL)
        store = MessageStore.open(path or tmp_path / "store", options, **settings)  # type: ignore[arg-type]
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.abandon()


@pytest.fixture
def stopped(tmp_path: Path, open_store: Callable[..., MessageStore], clock: Clock) -> Path:
    """A cleanly stopped store of 5 segments and 3 queues."""
    clock.step_ms = 1
    store = open_store()
    for number in range(200):
        store.append(message(f"u{number}", queue_id=number % 3, body=bytes([number]) * 250, KEYS=f"k{number}"))
    store.close()
    return tmp_path / "store"


@pytest.fixture(params=["clean", "killed"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store that the real broker wrote."""
    name: str = request.param
    with tarfile.open(GOLDEN / f"store-{name}.tar.gz") as archive:
        archive.extractall(tmp_path / name, filter="data")
    return tmp_path / name
