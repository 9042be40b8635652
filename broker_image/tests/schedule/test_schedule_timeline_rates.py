"""Topics whose due messages are taken at a limited rate, or spread over a window."""

from __future__ import annotations

import pytest
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.inspection import due_count
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
    assert max(late) <= 2_100


@pytest.mark.parametrize("window_ms", [500, 10_000, 3_600_000])
def test_burst_that_grows_is_not_later_than_the_window(window_ms: int) -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", Smoothing(window_ms=window_ms))
    later_ms = NOW_MS + window_ms // 10
    for number in range(2):
        add(index, number)
    found = run(index, NOW_MS, later_ms - 1)
    for number in range(1_000):
        add(index, 10 + number, later_ms)
    found.update(run(index, later_ms, NOW_MS + 10 * window_ms))
    times = {identity: time for time, each in found.items() for identity in each}
    assert len(times) == 1_002
    assert max(times.values()) <= later_ms + window_ms


@pytest.mark.parametrize(
    ("smoothing", "end_ms"), [(Smoothing(10, 20_000), 100_000), (Smoothing(1_000, 20_000), 20_000)]
)
def test_lower_one_of_rate_and_window_applies(smoothing: Smoothing, end_ms: int) -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", smoothing)
    for number in range(1_000):
        add(index, number)
    times = [time for time, each in run(index, NOW_MS, NOW_MS + 200_000).items() for _ in each]
    assert len(times) == 1_000
    assert NOW_MS + end_ms * 0.95 <= max(times) <= NOW_MS + end_ms + 200


@pytest.mark.parametrize("smoothing", [Smoothing(per_second=20), Smoothing(window_ms=10_000)])
def test_held_messages_of_groups_share_the_rate_of_their_topic(smoothing: Smoothing) -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", smoothing)
    for number in range(100):
        add(index, number)
        index.add(Pending(NOW_MS, 1_000 + number, 1_000 + number, 100, 0, index.partitions.number("slow", "g")))
    found = run(index, NOW_MS, NOW_MS + 60_000)
    times = sorted(time for time, each in found.items() for _ in each)
    assert len(times) == 200
    assert NOW_MS + 9_000 <= times[-1] <= NOW_MS + 10_200
    assert NOW_MS + 4_500 <= times[100] <= NOW_MS + 5_500


def test_spread_ends_at_its_time_and_includes_what_comes_due_meanwhile() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    for number in range(500):
        add(index, number)
        add(index, 1_000 + number, NOW_MS + number * 20)
    index.queues.spread("slow", NOW_MS + 20_000)
    times = [time for time, each in run(index, NOW_MS, NOW_MS + 60_000).items() for _ in each]
    assert len(times) == 1_000
    assert NOW_MS + 19_000 <= max(times) <= NOW_MS + 20_000
    per_second = [
        sum(begin <= time < begin + 1_000 for time in times) for begin in range(NOW_MS, NOW_MS + 20_000, 1_000)
    ]
    assert max(per_second) <= 100
    assert not index.queues.is_spread("slow")
    add(index, 5_000, NOW_MS + 70_000)
    add(index, 5_001, NOW_MS + 70_000)
    assert list(run(index, NOW_MS + 70_000, NOW_MS + 80_000).values()) == [[5_000, 5_001]]


def test_spread_does_not_exceed_the_rate_of_the_topic() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", Smoothing(per_second=10))
    for number in range(200):
        add(index, number)
    index.queues.spread("slow", NOW_MS + 5_000)
    times = [time for time, each in run(index, NOW_MS, NOW_MS + 60_000).items() for _ in each]
    assert len(times) == 200
    assert NOW_MS + 19_000 <= max(times) <= NOW_MS + 20_200


def test_rates_do_not_apply_to_messages_that_are_not_delivered() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", Smoothing(per_second=10))
    for number in range(300):
        add(index, number, NOW_MS - 300 + number)
    index.queues.set_unlimited("slow", (NOW_MS - 291, NOW_MS - 91))
    found = run(index, NOW_MS, NOW_MS + 60_000)
    assert [len(each) for each in list(found.values())[:9]] == [1] * 9
    assert len(found[NOW_MS + 900]) == 201
    assert NOW_MS + 9_500 <= max(found) <= NOW_MS + 10_100
    index.queues.unlimited_up_to_ms = NOW_MS + 70_000
    for number in range(100):
        add(index, 1_000 + number, NOW_MS + 70_000)
    assert sum(map(len, run(index, NOW_MS + 70_000, NOW_MS + 70_000).values())) == 100


def test_overdue_messages_of_a_topic_with_a_rate_are_not_paced_with_others() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", Smoothing(per_second=10))
    index.queues.set_rate("even", Smoothing(window_ms=1_000))
    for number in range(100):
        add(index, number)
        add(index, 1_000 + number, topic="even")
        index.maintain()
    assert index.begin_pacing(NOW_MS) == 100
    assert due_count(index, NOW_MS) == 100
    add(index, 2_000)
    add(index, 2_001, topic="even")
    assert (index.paced_left, due_count(index, NOW_MS)) == (101, 101)
    index.queues.set_rate("even", Smoothing(per_second=10))
    index.sort_out_paced()
    assert index.paced_left == 0


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
