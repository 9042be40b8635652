"""Inspection of the timeline's index: exact at rest, tolerant of changes between steps, and short in each step."""

from __future__ import annotations

import itertools
import time

from delaymq.schedule.buckets import Buckets
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.inspection import count_by_due, find_first, index_size
from delaymq.schedule.timeline.runs import Run, RunWriter, Sizes
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.schedule.memory_files import MemoryFiles
from delaymq_testing.schedule.timeline_index_model import SMALL, IndexModel

STEPS_A_RUN = 500
SEGMENT_BYTES = 1_000
LARGE = Sizes(memory=4_096, run_in_memory=8_192, merged_runs=4, step=1_024)
NOW_MS = 1_000_000


def add(index: Timeline, due_ms: int, identity: int, record: int, topic: str) -> None:
    index.add(Pending(due_ms, identity, record, 100, 0, index.partitions.number(topic)))


def filled(files: MemoryFiles, messages: int, sizes: Sizes, *, topics: int = 3) -> Timeline:
    index = Timeline(files, sizes, SEGMENT_BYTES)
    for number in range(messages):
        add(index, NOW_MS + number * 7_919 % messages, number, number, f"T{number % topics}")
        index.maintain()
    return index


def test_counts_and_first_messages_are_those_of_a_model() -> None:
    kinds_of_runs = set()
    for run in range(max(1, FUZZ_INPUTS // STEPS_A_RUN)):
        # With the smaller size, most merges are written to files.
        model = IndexModel(SEED * 1_000_003 + run, SMALL._replace(run_in_memory=8 if run % 2 else SMALL.run_in_memory))
        for _ in range(STEPS_A_RUN):
            model.step()
            model.check_inspection()
            kinds_of_runs |= {(each.is_plain, bool(each.name)) for each in model.index.runs}
    assert kinds_of_runs == set(itertools.product((True, False), repeat=2))


def test_messages_that_neither_change_nor_end_are_counted_once_whatever_happens_meanwhile() -> None:
    index = filled(MemoryFiles(), 600, SMALL, topics=60)
    kept = [NOW_MS + 10_000 + number for number in range(100)]
    for number, due_ms in enumerate(kept):
        add(index, due_ms, 10_000 + number, 10_000 + number, f"T{number % 60}")
    buckets, found = Buckets(NOW_MS, 1, 20_000), list[Pending]()
    counting = count_by_due(index, index.partitions.pending(), buckets)
    finding = find_first(index, index.partitions.pending(), 1_000, found)
    number = 0
    for _ in itertools.zip_longest(counting, finding):
        # Messages are added and delivered, so that the memory becomes runs and runs are merged.
        number += 1
        add(index, NOW_MS + 500, 50_000 + number, 50_000 + number, "T1")
        for entry in index.take(NOW_MS + 500, 2):
            index.settle([entry[2]])
        index.maintain()
    assert number > 50
    assert [buckets.counts[buckets.index_of(due_ms)] for due_ms in kept] == [1] * 100
    assert [entry.due_ms for entry in found if entry.identity in range(10_000, 20_000)] == kept


def test_steps_are_short_in_a_large_index_with_carried_and_ended_messages() -> None:
    index = filled(MemoryFiles(), 60_000, LARGE)
    for number in range(0, 30_000, 3):
        due_ms = NOW_MS + number * 7_919 % 60_000
        if number % 2:
            index.end(due_ms, number, index.partitions.number(f"T{number % 3}"))
        else:
            add(index, due_ms, number, 100_000 + number, f"T{number % 3}")
    assert any(not run.is_plain for run in index.runs)
    buckets, found = Buckets(NOW_MS, 1_000, 100), list[Pending]()
    longest_s = 0.0
    for steps in (
        count_by_due(index, index.partitions.pending(), buckets),
        find_first(index, index.partitions.pending(), 64, found),
    ):
        before = time.thread_time()
        for _ in steps:
            longest_s = max(longest_s, time.thread_time() - before)
            before = time.thread_time()
    assert sum(buckets.counts) == index.partitions.messages == 55_000
    assert longest_s < 0.1
    assert [entry.due_ms for entry in found] == sorted(entry.due_ms for entry in found)


def test_size_of_the_index_is_that_of_its_runs() -> None:
    files = MemoryFiles()
    index = filled(files, 1_000, SMALL)
    size = index_size(index)
    in_use = {run.name for run in index.runs if run.name}
    assert size.runs == len(index.runs)
    assert size.file_bytes == sum(len(files.read(name) or b"") for name in in_use) > 0
    while index.maintain():
        assert index_size(index).merging_entries >= 0
    assert index_size(index).merging_entries == 0
    assert Run(b"", [], is_plain=True).file_bytes == 0
    assert RunWriter().finish(is_plain=True).file_bytes == 0
