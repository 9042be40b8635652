"""Topics whose due messages are taken at a limited rate, or spread over a window."""

from __future__ import annotations

import pytest
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.inspection import due_count
from delaymq.schedule.timeline.queues import Shift
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
    index.begin_pacing(NOW_MS)
    assert index.paced_left == due_count(index, NOW_MS) == 100
    add(index, 2_000)
    add(index, 2_001, topic="even")
    assert (index.paced_left, due_count(index, NOW_MS)) == (101, 101)
    index.queues.set_rate("even", Smoothing(per_second=10))
    index.sort_out_paced()
    assert index.paced_left == 0


def test_merge_keeps_overdue_messages_of_a_topic_with_a_rate_while_others_are_paced() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", Smoothing(per_second=100))
    for number in range(1_000):
        add(index, number, NOW_MS - 1_000 + number)
    index.begin_pacing(NOW_MS)
    runs = len(index.runs)
    while index.maintain():
        pass
    assert len(index.runs) < runs
    found = run(index, NOW_MS, NOW_MS + 60_000)
    assert [identity for each in found.values() for identity in each] == list(range(1_000))


def test_shifted_messages_keep_their_distances_and_others_are_on_time() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    for number in range(300):
        add(index, number, NOW_MS - 3_000 + number * 20)
        add(index, 1_000 + number, NOW_MS - 3_000 + number * 20, topic="other")
        index.maintain()
    index.shift("slow", Shift(NOW_MS - 2_001, NOW_MS, 2_000))
    add(index, 500, NOW_MS - 500)
    assert index.queues.is_shifted("slow")
    assert index.queues.earliest_due_ms() == NOW_MS - 3_000
    found = {identity: time for time, each in run(index, NOW_MS, NOW_MS + 60_000).items() for identity in each}
    dues = {number: NOW_MS - 3_000 + number * 20 for number in range(300)} | {500: NOW_MS - 500}
    late = {number: due_ms for number, due_ms in dues.items() if NOW_MS - 2_000 <= due_ms <= NOW_MS}
    assert len(late) == 102
    assert all(found[number] == due_ms + 2_000 for number, due_ms in late.items())
    assert all(found[number] == max(due_ms, NOW_MS) for number, due_ms in dues.items() if number not in late)
    assert all(found[1_000 + number] == max(dues[number], NOW_MS) for number in range(300))
    assert not index.queues.is_shifted("slow")


def test_messages_are_taken_immediately_when_their_shift_ends() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    for number in range(300):
        add(index, number, NOW_MS - 3_000 + number * 10)
    index.shift("slow", Shift(0, NOW_MS, 5_000))
    assert index.take(NOW_MS + 1_999, 64) == []
    assert index.next_due_ms() == NOW_MS + 2_000
    assert len(run(index, NOW_MS, NOW_MS + 3_000)) == 101
    index.shift("slow", None)
    assert index.next_due_ms() == NOW_MS - 1_990
    found = run(index, NOW_MS + 3_000, NOW_MS + 3_000)
    assert [identity for each in found.values() for identity in each] == list(range(101, 300))


def test_merge_that_began_during_a_shift_does_not_return_taken_messages_if_the_others_are_paced() -> None:
    index = empty(MemoryFiles(), SIZES._replace(step=5), 1_000)
    for number in range(1_000):
        add(index, number, NOW_MS - 500 + number * 7 % 1_000)
    index.shift("slow", Shift(0, NOW_MS, 5_000))
    assert index.maintain()
    found = run(index, NOW_MS + 600, NOW_MS + 600)
    index.begin_pacing(NOW_MS + 600)
    while index.maintain():
        pass
    assert index.paced_left == 501
    identities = [entry[2] for _ in range(10) for entry in index.take_paced(NOW_MS + 600, 64)]
    assert sorted([*identities, *(each for some in found.values() for each in some)]) == list(range(1_000))


def test_merge_that_began_during_a_shift_does_not_return_taken_messages_after_it() -> None:
    index = empty(MemoryFiles(), SIZES._replace(step=5), 1_000)
    for number in range(1_000):
        add(index, number, NOW_MS - 500 + number * 7 % 1_000)
    index.shift("slow", Shift(0, NOW_MS, 5_000))
    assert index.maintain()
    found = run(index, NOW_MS + 300, NOW_MS + 300)
    index.shift("slow", None)
    while index.maintain():
        pass
    found |= run(index, NOW_MS + 600, NOW_MS + 600)
    assert sorted(identity for each in found.values() for identity in each) == list(range(1_000))


def test_rate_applies_to_shifted_and_other_messages_together() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    index.queues.set_rate("slow", Smoothing(per_second=50))
    for number in range(200):
        add(index, number, NOW_MS - 200 + number)
        add(index, 1_000 + number, NOW_MS + 1 + number)
    index.shift("slow", Shift(0, NOW_MS, 200))
    times = [time for time, each in run(index, NOW_MS, NOW_MS + 60_000).items() for _ in each]
    assert len(times) == 400
    assert NOW_MS + 7_500 <= max(times) <= NOW_MS + 8_300


def test_shifted_messages_of_a_paused_topic_are_held() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    for number in range(100):
        add(index, number, NOW_MS - 100 + number)
    index.shift("slow", Shift(0, NOW_MS, 200))
    index.pause("slow")
    assert index.next_due_ms() is None
    index.resume("slow")
    assert index.take(NOW_MS, 64) == []
    assert index.next_due_ms() == NOW_MS + 100


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
