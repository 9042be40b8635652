"""Search for single messages in the timeline's index: which runs are read, and which of several entries counts."""

from __future__ import annotations

import random

import pytest
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.entries import ENTRY
from delaymq.schedule.timeline.inspection import unused_due_ms
from delaymq.schedule.timeline.runs import BLOCK_BYTES, FileRun, Identities, Run, Sizes
from delaymq.schedule.timeline.state import Capture, empty, restore
from delaymq_testing.schedule.memory_files import MemoryFile, MemoryFiles

SEGMENT_BYTES = 1 << 20
IN_FILES = Sizes(memory=1_000, run_in_memory=0, merged_runs=2, step=10_000)
RECORD_BYTES = 100


def add(index: Timeline, due_ms: int, identity: int, group: str = "") -> Pending:
    partition, owner = index.partitions.number("T"), index.partitions.owner_number("", "T" if group else "", group)
    entry = Pending(due_ms, identity, identity, RECORD_BYTES, owner, partition)
    index.add(entry)
    return entry


def present(index: Timeline, entry: Pending) -> Pending | None:
    return index.find(entry.due_ms, entry.identity, entry.partition)


def moved(index: Timeline, entry: Pending, due_ms: int) -> Pending:
    """Moves a message, as on request, and returns its present state."""
    now = index.taken(entry.identity) or present(index, entry)
    assert now is not None
    index.move(now, unused_due_ms(index, now, due_ms))
    state = index.find(due_ms, entry.identity, entry.partition)
    assert state is not None
    return state


def put_aside(index: Timeline, entry: Pending, now_ms: int) -> None:
    """Takes a due message of a paused group and puts it back, as the hand-over does."""
    assert [identity for _, _, identity, _ in index.take(now_ms, 10)] == [entry.identity]
    taken = index.taken(entry.identity)
    assert taken is not None
    assert index.holding.hold_if_paused(taken)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the reads of run files."""
    sizes: list[int] = []
    original = MemoryFile.pread

    def pread(file: MemoryFile, count: int, position: int) -> bytes:
        sizes.append(count)
        return original(file, count, position)

    monkeypatch.setattr(MemoryFile, "pread", pread)
    return sizes


def in_files(messages: int = 15_000) -> tuple[Timeline, list[Pending]]:
    """Returns an index with several runs in files, and its messages."""
    chance = random.Random(1)
    index = empty(MemoryFiles(), IN_FILES, SEGMENT_BYTES)
    entries = []
    for number in range(messages):
        entries.append(add(index, chance.randrange(10**9), number * RECORD_BYTES))
        index.maintain()
    index.freeze()
    while index.maintain():
        pass
    return index, entries


@pytest.mark.parametrize("is_restored", [False, True])
def test_message_is_searched_for_in_the_run_that_contains_it(reads: list[int], is_restored: bool) -> None:
    index, entries = in_files()
    if is_restored:
        capture = Capture(index)
        capture.write()
        capture.finish(is_published=True)
        index = restore(index.files, capture.reference, IN_FILES, SEGMENT_BYTES)
    assert len([run for run in index.runs if isinstance(run, FileRun)]) >= 3
    chosen = random.Random(2).sample(entries, 500)
    reads.clear()
    assert [present(index, entry) for entry in chosen] == chosen
    assert max(reads) <= BLOCK_BYTES
    assert len(reads) < len(chosen) * 1.2


def test_runs_with_changes_of_other_messages_are_not_read(reads: list[int]) -> None:
    index, entries = in_files(16_000)
    random.Random(3).shuffle(entries)
    ended, kept = entries[:2_000], entries[2_000:2_500]
    for entry in ended:
        assert index.end(*entry[:2], entry.partition) == entry
    while index.maintain():
        pass
    assert [(run.is_plain, run.count, isinstance(run, FileRun)) for run in index.runs] == [
        (True, 16_000, True),
        (False, 2_000, True),
    ]
    reads.clear()
    assert [present(index, entry) for entry in kept] == kept
    assert len(reads) < len(kept) * 1.4
    assert not any(present(index, entry) for entry in ended)


def test_set_of_identities_contains_what_was_added_and_seldom_anything_else() -> None:
    chance = random.Random(4)
    identities = chance.sample(range(0, 10**9, 100), 3_000)
    known, others = identities[:1_500], identities[1_500:]
    of_run = Identities(len(known))
    of_run.add(b"".join(ENTRY.pack(chance.randrange(10**9), identity, 0, 1, 0) for identity in known))
    assert all(identity in of_run for identity in known)
    assert sum(identity in of_run for identity in others) < len(others) // 5


def test_run_without_entries_is_searched() -> None:
    assert Run(b"", (), is_plain=True).find(0, 0, (5, 5)) == 0
    assert 5 not in Identities(0)


def test_message_put_aside_again_after_its_group_was_moved_is_found() -> None:
    index = empty(MemoryFiles(), Sizes(), SEGMENT_BYTES)
    index.pause("T", "g")
    entry = add(index, 10, 1, "g")
    put_aside(index, entry, 10)
    index.freeze()
    index.sweep.change("T", "g", 20)
    while index.sweep.step():
        pass
    put_aside(index, entry, 20)
    index.sweep.change("T", "g", 20)
    while index.sweep.step():
        pass
    index.freeze()  # it contains the end of the entry in the partition of the group
    put_aside(index, entry, 20)
    index.freeze()
    found = index.find(20, 1, entry.partition)
    assert found is not None
    assert index.partitions.key(found.partition).group == "g"


def test_message_that_is_retried_when_it_was_due_before_is_found() -> None:
    index = empty(MemoryFiles(), Sizes(), SEGMENT_BYTES)
    entry = add(index, 100, 1)
    index.freeze()
    moved(index, entry, 10)
    index.freeze()  # it contains the end of the first entry
    assert index.take(10, 1)
    index.give_back([(100, -1, 1, 0)])
    index.freeze()
    assert present(index, entry) == entry


def test_held_message_is_not_moved_to_a_time_of_an_earlier_entry() -> None:
    index = empty(MemoryFiles(), Sizes(), SEGMENT_BYTES)
    entry = add(index, 100, 1, "g")
    index.freeze()
    moved(index, entry, 10)
    index.freeze()
    index.pause("T", "g")
    put_aside(index, entry, 10)
    held = index.find(10, 1, entry.partition)
    assert held is not None
    assert unused_due_ms(index, held, 100) == 101
