"""The timeline's index with failing reads and a full disk, and its memory when messages end as fast as they come."""

from __future__ import annotations

import errno
import random
import weakref

import pytest
from delaymq.schedule.timeline import PacedTimeline, Pending, RunFile, Timeline
from delaymq.schedule.timeline.cursors import EntryQueue
from delaymq.schedule.timeline.entries import ENTRY_BYTES
from delaymq.schedule.timeline.runs import FileRun, Sizes
from delaymq.schedule.timeline.state import Capture, empty, restore
from delaymq_testing.repetitions import SEED
from delaymq_testing.schedule.memory_files import MemoryFile, MemoryFiles

SIZES = Sizes(memory=50, run_in_memory=40, merged_runs=3, step=20)


def add(index: Timeline, due_ms: int, identity: int, *, record: int | None = None, topic: str = "T") -> None:
    partition = index.partitions.number(topic)
    index.add(Pending(due_ms, identity, identity if record is None else record, 100, 0, partition))


def take_all(index: Timeline, now_ms: int) -> list[int]:
    taken = []
    while entries := index.take(now_ms, 7):
        for _, _, identity, _ in entries:
            taken.append(identity)
            index.settle([identity])
    return taken


class FailingReads:
    """Reads of files that fail at random."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self._random = random.Random(seed)
        self.share = 0.0
        self.count = 0
        original = MemoryFile.pread

        def pread(file: MemoryFile, count: int, position: int) -> bytes:
            if self._random.random() < self.share:
                self.count += 1
                raise OSError(errno.EIO, "no such sector")
            return original(file, count, position)

        monkeypatch.setattr(MemoryFile, "pread", pread)


@pytest.mark.parametrize("seed", range(SEED * 100, SEED * 100 + 20))
@pytest.mark.parametrize("is_paced", [False, True])
def test_each_message_is_taken_once_although_reads_fail(
    monkeypatch: pytest.MonkeyPatch, seed: int, is_paced: bool
) -> None:
    reads = FailingReads(monkeypatch, seed)
    monkeypatch.setattr("delaymq.schedule.timeline.cursors._BUFFERED", 3)
    monkeypatch.setattr("delaymq.schedule.timeline.runs.BLOCK_ENTRIES", 4)
    monkeypatch.setattr("delaymq.schedule.timeline.runs.BLOCK_BYTES", 4 * ENTRY_BYTES)
    chance = random.Random(seed)
    index = empty(MemoryFiles(), SIZES, 1_000)
    dues = {identity: chance.randint(0, 300) for identity in range(1_000)}
    for identity, due_ms in dues.items():
        add(index, due_ms, identity, topic=f"T{identity % 3}")
        index.maintain()
    for identity in chance.sample(sorted(dues), 300):
        add(index, dues[identity], identity, record=10_000 + identity, topic=f"T{identity % 3}")
    for identity in chance.sample(sorted(dues), 100):
        due_ms = dues.pop(identity)
        assert index.end(due_ms, identity, index.partitions.number(f"T{identity % 3}")) is not None
    if is_paced:
        index.begin_pacing(1_000)
    reads.share = 0.2
    taken: list[int] = []
    while index.partitions.messages:
        try:
            entries = index.take_paced(1_000, 7) if is_paced else index.take(1_000, 7)
        except OSError:
            continue
        assert entries
        for _, _, identity, _ in entries:
            taken.append(identity)
            index.settle([identity])
    assert reads.count > 20
    assert sorted(taken) == sorted(dues)
    topics = range(1) if is_paced else range(3)
    for topic in topics:
        of_topic = [identity for identity in taken if is_paced or identity % 3 == topic]
        assert of_topic == sorted(of_topic, key=lambda identity: (dues[identity], identity))


def test_queues_release_what_has_ended_or_waits_for_an_earlier_time() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    add(index, 10**9, 0)
    for number in range(1, 5_000):
        add(index, number, number)
        assert take_all(index, number) == [number]
    assert len(index.queues._wakeups._items) < 100
    partition = index.partitions.number("T")
    for number in range(5_000, 10_000):
        add(index, number, number)
        assert index.end(number, number, partition) is not None
    assert len(index.queues._queues["T"][""]._fresh) <= 2 * SIZES.memory
    for number in range(10_000, 15_000):
        add(index, 10**8 + number, number)
        entry = index.find(10**8 + number, number, partition)
        assert entry is not None
        index.move(entry, number)
        assert take_all(index, number) == [number]
    assert len(index.queues._queues["T"][""]._fresh) <= 2 * SIZES.memory
    assert take_all(index, 10**9) == [0]


def test_ends_of_messages_in_runs_become_runs_too() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    for number in range(1_000):
        add(index, number, number)
    for number in range(500):
        assert index.end(number, number, index.partitions.number("T")) is not None
        assert len(index.ended_entries) < SIZES.memory
    assert take_all(index, 1_000) == list(range(500, 1_000))


def filled(files: MemoryFiles, messages: int = 400) -> Timeline:
    index = empty(files, SIZES, 1_000)
    for number in range(messages):
        add(index, number, number)
    return index


def merge_all(index: Timeline) -> None:
    while index.maintain():
        pass


def test_merge_on_a_full_disk_leaves_no_file_and_is_repeated() -> None:
    files = MemoryFiles()
    index = filled(files)
    for _ in range(50):
        files.room = 200
        with pytest.raises(OSError, match="no space"):
            merge_all(index)
        assert files.names() == []
    files.room = None
    merge_all(index)
    assert len(index.runs) < 3
    assert take_all(index, 1_000) == list(range(400))


def test_merge_is_repeated_after_its_file_could_not_be_created(monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled(MemoryFiles())
    with monkeypatch.context() as shortage:
        error = OSError(errno.EMFILE, "no more descriptors")
        shortage.setattr(MemoryFiles, "create", lambda *_: (_ for _ in ()).throw(error))
        for _ in range(3):
            with pytest.raises(OSError, match="no more descriptors"):
                merge_all(index)
    assert index.maintain()


def test_snapshot_on_a_full_disk_first_removes_files_that_nothing_needs() -> None:
    files = MemoryFiles()
    index = filled(files)
    merge_all(index)
    for number in range(400, 2_000):
        add(index, number, number)
        index.maintain()
    unneeded = set(index.garbage)
    assert unneeded
    files.room = 10
    capture = Capture(index)
    with pytest.raises(OSError, match="no space"):
        capture.write()
    capture.finish(is_published=False)
    assert set(files.names()) == {run.name for run in index.runs if run.name}
    files.room = None
    capture = Capture(index)
    capture.write()
    capture.finish(is_published=True)
    assert take_all(restore(files, capture.reference, SIZES, 1_000), 2_000) == list(range(2_000))


def test_file_of_a_merged_run_is_closed_when_it_is_removed() -> None:
    files = MemoryFiles()
    index = empty(files, SIZES, 1_000)
    seen: dict[str, weakref.ref[RunFile]] = {}
    for number in range(5_000):
        add(index, 10_000 - number, number, topic=f"T{number % 3}")
        seen.update((run.name, weakref.ref(run.file)) for run in index.runs if isinstance(run, FileRun))
        index.maintain()
    for _ in range(2):
        capture = Capture(index)
        capture.write()
        capture.finish(is_published=True)
    assert len(seen) > 40
    assert {name for name, file in seen.items() if file() is not None} <= {run.name for run in index.runs}


def test_earliest_due_time_is_known_without_a_look_at_each_due_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    for number in range(500):
        add(index, 1_000 + number, number, topic=f"T{number}")
        add(index, 1_000 + number, 1_000 + number, topic=f"T{number}")
    assert index.next_due_ms() == 1_000
    taken = [entry[2] for entry in index.take(1_400, 400)]
    assert taken == [identity for number in range(200) for identity in (number, 1_000 + number)]
    with monkeypatch.context() as counting:
        counting.setattr(EntryQueue, "next_due_ms", lambda queue: pytest.fail("a queue was read"))
        assert index.next_due_ms() == 1_200
    while index.take(1_250, 100):
        pass
    assert index.next_due_ms() == 1_251
    while index.take(1_400, 100):
        pass
    assert index.next_due_ms() == 1_401
    index.give_back([(1_300, -1, 300, 0)])
    assert index.next_due_ms() == 1_300


def test_returned_paced_messages_keep_their_slots() -> None:
    index = filled(MemoryFiles(), 100)
    paced = PacedTimeline(index, 100, 0, 1_000)
    for now_ms in range(0, 900, 10):
        if entries := paced.take(now_ms, 7):
            paced.give_back(entries)
    assert paced.left == 100
    due_ms = paced.next_due_ms()
    assert due_ms is not None
    assert due_ms < 900
    assert len(paced.take(900, 100)) == 91
    assert len(paced.take(1_000, 100)) == 9
    assert paced.next_due_ms() is None
