"""Topics whose due messages are taken at a limited rate, or spread over a window."""

from __future__ import annotations

import pytest
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.rates import Smoothing
from delaymq.schedule.timeline.runs import Sizes
from delaymq.schedule.timeline.state import Capture, empty, restore
from delaymq_testing.schedule.memory_files import MemoryFiles

SIZES = Sizes(memory=64, run_in_memory=200, merged_runs=4, step=50)
NOW_MS = 1_000_000


def add(index: Timeline, number: int, due_ms: int = NOW_MS, topic: str = "slow") -> None:
    index.add(Pending(due_ms, number, number, 100, 0, index.partitions.number(topic)))


def run(index: Timeline, start_ms: int, end_ms: int) -> dict[int, list[int]]:
    """Takes what may be taken until a time, at the times at which the index wakes up; identities by time."""
    found: dict[int, list[int]] = {}
    now_ms = start_ms
    for _ in range(100_000):
        taken = index.take(now_ms, 64)
        if taken:
            found.setdefault(now_ms, []).extend(entry[2] for entry in taken)
            index.settle([entry[2] for entry in taken])
        next_ms = index.next_due_ms()
        if next_ms is None or next_ms > end_ms:
            return found
        now_ms = max(now_ms, next_ms)
    raise AssertionError("the index never sleeps")


def test_topic_is_taken_at_most_at_its_rate_and_others_are_not_delayed() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", Smoothing(per_second=50))
    for number in range(500):
        add(index, number)
        add(index, 10_000 + number, topic="fast")
        index.maintain()
    found = run(index, NOW_MS, NOW_MS + 30_000)
    slow = [(time, identity) for time, each in found.items() for identity in each if identity < 10_000]
    assert [identity for _, identity in slow] == list(range(500))
    assert all(time == NOW_MS for time, each in found.items() for identity in each if identity >= 10_000)
    for second in range(9):
        begin = NOW_MS + second * 1_000
        assert 44 <= sum(begin <= time < begin + 1_000 for time, _ in slow) <= 56
    assert NOW_MS + 9_700 <= slow[-1][0] <= NOW_MS + 10_100


@pytest.mark.parametrize("messages", [1, 7, 500, 3_000])
def test_messages_due_together_are_spread_over_the_window(messages: int) -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", Smoothing(window_ms=20_000))
    for number in range(messages):
        add(index, number)
        index.maintain()
    times = [time for time, each in run(index, NOW_MS, NOW_MS + 60_000).items() for _ in each]
    assert len(times) == messages
    assert max(times) - NOW_MS <= 20_100
    if messages > 100:
        middle = sorted(times)[messages // 2]
        assert NOW_MS + 9_500 <= middle <= NOW_MS + 10_500
        assert max(times) >= NOW_MS + 19_000


def test_window_bounds_the_delay_of_a_steady_stream() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", Smoothing(window_ms=2_000))
    late: list[int] = []
    for second in range(20):
        for number in range(100):
            add(index, second * 100 + number, NOW_MS + second * 1_000 + number * 10)
        for time, identities in run(index, NOW_MS + second * 1_000, NOW_MS + second * 1_000 + 999).items():
            late += [time - (NOW_MS + each * 10) for each in identities]
    assert len(late) > 1_500
    assert max(late) < 4_000


def test_removed_limit_applies_no_longer() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", Smoothing(per_second=1))
    for number in range(100):
        add(index, number)
    assert len(index.take(NOW_MS, 64)) == 1
    index.queues.set_rate("slow", None)
    assert index.next_due_ms() == NOW_MS
    assert sum(map(len, run(index, NOW_MS, NOW_MS).values())) == 99


def test_limit_applies_to_restored_topics_and_to_queues_that_were_removed() -> None:
    files = MemoryFiles()
    index = empty(files, SIZES, 1_000)
    index.queues.set_rate("slow", Smoothing(per_second=10))
    for number in range(30):
        add(index, number)
    capture = Capture(index)
    capture.write()
    capture.finish(is_published=True)
    restored = restore(files, capture.reference, SIZES, 1_000)
    restored.queues.set_rate("slow", Smoothing(per_second=10))
    times = [time for time, each in run(restored, NOW_MS, NOW_MS + 60_000).items() for _ in each]
    assert NOW_MS + 2_500 <= max(times) <= NOW_MS + 3_000
    restored.drop_consumed()
    add(restored, 1_000, NOW_MS + 70_000)
    add(restored, 1_001, NOW_MS + 70_000)
    assert len(run(restored, NOW_MS + 70_000, NOW_MS + 80_000)) == 2


def test_clock_that_is_set_back_delays_at_most_until_it_has_caught_up() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", Smoothing(per_second=10))
    for number in range(10):
        add(index, number, NOW_MS - 50_000)
    assert len(index.take(NOW_MS, 64)) == 1
    assert index.take(NOW_MS - 10_000, 64) == []
    found = run(index, NOW_MS - 9_000, NOW_MS + 1_000)
    assert sum(map(len, found.values())) == 9
