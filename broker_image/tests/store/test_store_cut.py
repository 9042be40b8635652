"""Cuts of a log's end: the next start leaves the store that never had it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from delaymq.message.levels import DelayLevels
from delaymq.store import layout
from delaymq.store.disk.files import Files
from delaymq.store.errors import CutError, NotAStoreError, StoreLockedError
from delaymq.store.message_store import MessageStore
from delaymq.store.reader import StoreReader
from delaymq.store.replica.cutting import cut
from delaymq.store.tools.verify import verify
from delaymq_testing.repetitions import CRASH_STATES, SEED
from delaymq_testing.store.raw_logs import log_of, random_life, receive, state_of
from delaymq_testing.store.recording import CrashStates, QuietFiles, RecordingFiles
from delaymq_testing.store.small_stores import SMALL, Clock, Watcher, kinds, message, snapshot

Open = Callable[..., MessageStore]


def boundaries(path: Path) -> list[int]:
    """The offsets at which records start."""
    return [record.physical_offset for record in StoreReader(path).records()]


def prefix_store(open_store: Open, path: Path, data: bytes) -> tuple[MessageStore, Watcher]:
    """A store that never had more of the log than `data`."""
    watcher = Watcher()
    store = open_store(path, observers=[watcher])
    receive(store, data, Random(SEED))
    return store, watcher


@pytest.mark.parametrize("seed", range(8))
def test_store_after_a_cut_is_the_one_that_never_had_the_tail(
    tmp_path: Path, open_store: Open, clock: Clock, seed: int
) -> None:
    chance = Random(SEED * 100 + seed)
    store = open_store(observers=[Watcher()])
    snapshots = []
    for _ in range(5):
        random_life(store, chance, clock, chance.randrange(40))
        if chance.random() < 0.6:
            snapshot(store)
            snapshots.append(store.end_offset)
        store.write_behind()
    data = log_of(store)
    if chance.random() < 0.5:
        store.close()
        snapshots.append(store.end_offset)
    else:
        store.abandon()
    at = chance.choice([0, len(data), *boundaries(tmp_path / "store")])
    cut(tmp_path / "store", at)
    watcher = Watcher()
    cut_store = open_store(observers=[watcher])
    expected, expected_watcher = prefix_store(open_store, tmp_path / "prefix", data[:at])
    assert cut_store.recovery.snapshot_used == bool(snapshots and snapshots[-1] <= at)
    assert state_of(cut_store) == state_of(expected)
    assert watcher.offsets == expected_watcher.offsets
    random_life(cut_store, chance, clock, 30)
    cut_store.close()
    assert not verify(tmp_path / "store").damage
    reopened = open_store(observers=[Watcher()])
    assert not kinds(reopened)
    assert layout.read_state_as_it_is(Files(), reopened.path) == layout.read_state(Files(), reopened.path, [])


def test_cut_bytes_are_moved_aside_and_reported(tmp_path: Path, open_store: Open, stopped: Path) -> None:
    data = b"".join(path.read_bytes() for path in sorted((stopped / "commitlog").iterdir()))
    at = boundaries(stopped)[70]
    cut(stopped, at)
    store = open_store(stopped)
    assert kinds(store).count("cut-tail") == 4
    aside = stopped / "delaymq" / "aside"
    kept = next(path for path in aside.iterdir() if path.name.startswith(f"{at:020d}-")).read_bytes()
    assert data[at:].startswith(kept)
    moved = sorted(aside.glob("commitlog~*"))
    assert data.endswith(b"".join(path.read_bytes() for path in moved))
    assert len(os.listdir(stopped / "commitlog")) == 2


def test_cut_inside_a_record_cuts_the_record(open_store: Open, stopped: Path) -> None:
    at = boundaries(stopped)[70]
    cut(stopped, at + 50)
    assert open_store(stopped).end_offset == at


def test_lower_one_of_two_cuts_is_in_force(open_store: Open, stopped: Path) -> None:
    low, high = boundaries(stopped)[60], boundaries(stopped)[70]
    cut(stopped, low)
    cut(stopped, high)
    assert open_store(stopped).end_offset == low


def test_older_programs_do_not_open_a_store_with_a_stated_cut(stopped: Path) -> None:
    cut(stopped, boundaries(stopped)[70])
    state = layout.read_state_as_it_is(Files(), str(stopped))
    assert state is not None
    assert "has to be cut" in state.unfinished  # which makes any version refuse the store


def test_stores_that_cannot_be_cut_are_not_changed(tmp_path: Path, open_store: Open, stopped: Path) -> None:
    with pytest.raises(CutError, match="no readable"):
        cut(tmp_path, 0)
    with pytest.raises(CutError, match="begins at 0"):
        cut(stopped, -1)
    store = open_store(stopped)
    state = (stopped / "delaymq" / "state.json").read_bytes()
    store.abandon()
    lock = open_store(stopped)
    lock.close()
    assert (stopped / "delaymq" / "state.json").read_bytes() == state
    unfinished = state.replace(b'"minimumReader"', b'"unfinished":"an unfinished restore","minimumReader"')
    (stopped / "delaymq" / "state.json").write_bytes(unfinished)
    with pytest.raises(NotAStoreError):
        cut(stopped, 0)


def test_topic_deleted_in_the_tail_has_its_queues_again(tmp_path: Path, open_store: Open, clock: Clock) -> None:
    store = open_store(observers=[Watcher()])
    for number in range(10):
        store.append(message(f"u{number}", topic="Watched" if number % 2 else "Orders"))
    snapshot(store)
    at, data = store.end_offset, log_of(store)
    store.append(message("tail"))
    store.delete_topic("Watched")
    for number in range(9):
        store.append(message(f"new{number}", topic="Watched"))
    store.close()
    cut(tmp_path / "store", at)
    watcher = Watcher()
    cut_store = open_store(observers=[watcher])
    expected, expected_watcher = prefix_store(open_store, tmp_path / "prefix", data)
    assert state_of(cut_store) == state_of(expected)
    assert watcher.offsets == expected_watcher.offsets
    assert dict(cut_store.deleted_topics) == {}


def test_topic_recreated_by_the_tail_itself_has_its_old_entries(tmp_path: Path, open_store: Open) -> None:
    source = open_store(tmp_path / "source")
    for number in range(10):
        source.append(message(f"u{number}"))
    at = source.end_offset
    source.delete_topic("Orders")
    for number in range(15):
        source.append(message(f"new{number}"))
    data = log_of(source)
    store, _ = prefix_store(open_store, tmp_path / "store", data[:at])
    snapshot(store)
    store.append_raw(at, data[at:])
    store.write_behind()
    store.abandon()
    store = open_store(tmp_path / "store", observers=[Watcher()], end_at_damage=True)
    assert kinds(store) == []
    assert store.queue_bounds("Orders", 0) == (0, 15)
    store.abandon()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "copy" / "lock").unlink()
    cut(tmp_path / "copy", at)
    cut_store = open_store(tmp_path / "copy", observers=[Watcher()])
    assert not cut_store.recovery.snapshot_used
    assert cut_store.queue_bounds("Orders", 0) == (0, 10)


def test_open_store_cannot_be_cut(open_store: Open, stopped: Path) -> None:
    store = open_store(stopped)
    with pytest.raises(StoreLockedError):
        cut(stopped, 0)
    store.close()
    assert open_store(stopped).end_offset == store.end_offset


@pytest.mark.parametrize("recording", range(3))
def test_crash_during_a_cut_leaves_the_old_store_or_the_cut_one(tmp_path: Path, clock: Clock, recording: int) -> None:
    chance, levels = Random(SEED * 10 + recording), DelayLevels.parse()
    path = tmp_path / "recorded"
    files = RecordingFiles(str(path))

    def open_at(path: Path, files: Files) -> MessageStore:
        return MessageStore.open(path, SMALL, now_ms=clock, levels=levels, files=files, observers=[Watcher()])

    def state_at(path: Path, files: Files) -> dict[str, object]:
        store = open_at(path, files)
        found = state_of(store)
        store.close()
        return found

    store = open_at(path, files)
    random_life(store, chance, clock, 40)
    snapshot(store)
    earliest = store.end_offset if recording else 0
    random_life(store, chance, clock, 40)
    store.close()
    old = state_at(path, files)
    at = chance.choice([each for each in boundaries(path) if each >= earliest])
    begin = files.calls
    cut(path, at, files=files)
    expected = state_at(path, files)
    assert expected["ends"] != old["ends"]
    states, outcomes = CrashStates(files), set()
    for number in range(max(CRASH_STATES // 15, 20)):
        last = chance.choice([begin + 5, files.calls])  # few of the calls precede the decision
        call, mode = chance.randint(begin, last), chance.choice(["kill", "power", "torn", "nothing"])
        target = tmp_path / f"state-{number}"
        states.write(call, Random(number), mode, str(target))
        found = state_at(target, QuietFiles())
        assert found in (old, expected), f"recording {recording}, state {number}, call {call}, {mode}"
        outcomes.add(found == old)
        cut(target, at)
        assert state_at(target, QuietFiles()) == expected
        assert not verify(target).damage
        shutil.rmtree(target)
    assert outcomes == {True, False}
