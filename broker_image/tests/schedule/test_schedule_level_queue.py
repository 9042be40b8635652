from __future__ import annotations

import time
import tracemalloc
from array import array
from random import Random

import pytest
from delaymq.schedule import LevelQueue, Settled
from delaymq.schedule.level_queue import MAX_RUNS
from hypothesis import given
from hypothesis import strategies as st


def queue_of(dues: list[int], settled: Settled | None = None) -> LevelQueue:
    queue = LevelQueue(3, settled or Settled())
    for offset, due_ms in enumerate(dues, queue.end_offset):
        queue.add(offset, due_ms)
    return queue


def offsets(queue: LevelQueue, now_ms: int, count: int = 1_000_000) -> list[int]:
    return [offset for _, _, offset, _ in queue.take(now_ms, count)]


def test_nothing_is_returned_before_it_is_due() -> None:
    queue = queue_of([10, 20, 30])
    assert queue.next_due_ms() == 10
    assert offsets(queue, 9) == []
    assert offsets(queue, 20) == [0, 1]
    assert queue.next_due_ms() == 30


def test_equal_due_times_keep_the_queue_order() -> None:
    queue = queue_of([50, 50, 20, 50, 20, 50])
    assert offsets(queue, 50) == [2, 4, 0, 1, 3, 5]


def test_later_entry_with_an_earlier_due_time_comes_first() -> None:
    queue = queue_of([100, 110, 120, 5, 6])
    assert queue.next_due_ms() == 5
    assert offsets(queue, 6) == [3, 4]
    assert offsets(queue, 120) == [0, 1, 2]


def test_settled_entries_are_skipped_and_cause_no_wakeup() -> None:
    settled = Settled()
    queue = queue_of([10, 20, 30, 40], settled)
    settled.settle(1)
    settled.settle(0)
    assert queue.next_due_ms() == 30
    settled.settle(3)
    assert offsets(queue, 100) == [2]
    assert queue.next_due_ms() is None


def test_returned_entries_come_again_in_order() -> None:
    queue = queue_of([10, 10, 10, 20])
    taken = queue.take(10, 2)
    queue.give_back(taken)
    assert offsets(queue, 20) == [0, 1, 2, 3]


def test_pending_counts_unsettled_entries() -> None:
    settled = Settled()
    queue = queue_of([10, 20, 30, 40], settled)
    queue.take(20, 10)
    assert queue.pending == 4
    settled.settle(0)
    settled.settle(2)
    assert queue.pending == 2


DUES = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 1_000)), max_size=300)


@given(DUES, st.lists(st.tuples(st.integers(0, 1_100), st.integers(1, 50), st.booleans()), max_size=20), st.booleans())
def test_level_queue_agrees_with_a_sorted_list(
    dues: list[int], steps: list[tuple[int, int, bool]], loaded: bool
) -> None:
    settled = Settled()
    queue = LevelQueue(0, settled)
    if loaded:
        queue.extend(0, array("q", dues))
    else:
        queue = queue_of(dues, settled)
    model = sorted((due, offset) for offset, due in enumerate(dues))
    for now_ms, count, settles in steps:
        assert queue.next_due_ms() == (model[0][0] if model else None)
        expected = [pair for pair in model if pair[0] <= now_ms][:count]
        taken = [(due, offset) for due, _, offset, _ in queue.take(now_ms, count)]
        assert taken == expected
        model = model[len(taken) :]
        if settles:
            for _, offset in taken:
                settled.settle(offset)
            for _, offset in model[3:30:5]:
                settled.settle(offset)
            model = [pair for pair in model if pair[1] not in settled]
    assert offsets(queue, 2_000) == [offset for _, offset in model]


@pytest.mark.parametrize("seed", range(5))
def test_thousands_of_unordered_entries_stay_in_few_runs(seed: int) -> None:
    random = Random(seed)
    dues = [random.randrange(1_000_000) for _ in range(3_000)]
    queue = queue_of(dues)
    assert len(queue._heap) <= MAX_RUNS
    assert offsets(queue, 1_000_000) == [offset for _, offset in sorted((due, at) for at, due in enumerate(dues))]


def test_falling_due_times_use_arrays_and_not_one_run_per_entry() -> None:
    count = 20_000
    queue = queue_of(list(range(count, 0, -1)))
    assert len(queue._heap) <= MAX_RUNS
    assert offsets(queue, count) == list(range(count - 1, -1, -1))


def test_million_pending_entries_use_less_than_20_mb_and_load_in_one_call() -> None:
    dues = array("q", range(1_000_000))
    tracemalloc.start()
    try:
        queue = LevelQueue(0, Settled())
        for first in range(0, 1_000_000, 65_536):
            queue.extend(first, dues[first : first + 65_536])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20_000_000
    # Of the processor's time, which a busy machine does not make longer.
    began_s = time.process_time()
    queue = LevelQueue(0, Settled())
    queue.extend(0, dues)
    # Some 50 ms; the limit only tells it from an object an entry.
    assert time.process_time() - began_s < 1.0
    assert queue.pending == queue.waiting == 1_000_000
    given_out = 0
    while taken := queue.take(1_000_000, 5_000):
        assert taken[0][2] == given_out
        given_out += len(taken)
    assert given_out == 1_000_000


def test_memory_of_returned_entries_is_released() -> None:
    queue = LevelQueue(0, Settled())
    queue.extend(0, array("q", range(100_000)))
    while queue.take(90_000, 1_000):
        pass
    assert sum(len(run.dues) for _, _, run in queue._heap) <= 20_000
